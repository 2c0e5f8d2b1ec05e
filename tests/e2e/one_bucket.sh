#!/usr/bin/env bash
# Nodes that are told the bucket and nothing else are one database: on a folder, and on an S3 server, where a node alone keeps the newest log
# in the bucket, three keep it on their disks, and one that is left by the others in order goes on in the bucket.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_debian psql postgresql-client
bin="${TELESTO_BIN:-$CARGO_TARGET_DIR/debug/telesto}"
[ -n "${TELESTO_BIN:-}" ] || cargo build -q -p telesto
declare -A pids
end_all() {
    local status=$?
    [ "$status" = 0 ] || for log in "$WORK"/[a-z].before "$WORK"/[a-z].log; do [ ! -e "$log" ] || { echo "== $log"; tail -n 45 "$log"; }; done >&2
    for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
    cleanup
}
trap end_all EXIT

# begin NAME [options…]: a node that is told the bucket; sets pids.
begin() {
    local name="$1"; shift
    [ ! -e "$WORK/$name.log" ] || cat "$WORK/$name.log" >>"$WORK/$name.before"
    : >"$WORK/$name.log"
    "$bin" start --bucket "$BUCKET" --data-dir "$WORK/$folders/$name" --listen 127.0.0.1:0 --http none --memory 256MiB --log-level "${LEVEL:-warn}" "$@" >"$WORK/$name.log" 2>&1 &
    pids[$name]=$!
}
is_ready() { grep -qx 'Ready\.' "$WORK/$1.log"; }
must() { wait_for "${PATIENCE:-120}" "$@" || die "not within ${PATIENCE:-120} s: $*"; }
line() { awk -v name="$2" '$1 == name { print $2; exit }' "$WORK/$1.log"; }
sql() { local at; at="$(line "$1" postgres)"; psql -XAtq -v ON_ERROR_STOP=1 "host=127.0.0.1 port=${at##*:} user=telesto dbname=telesto sslmode=disable" -c "$2"; }
# is NAME SQL ANSWER
is() { [ "$(sql "$1" "$2" 2>/dev/null)" = "$3" ]; }
# leave NAME: SIGTERM; it ends by itself.
leave() { kill "${pids[$1]}"; wait "${pids[$1]}" || { cat "$WORK/$1.log" >&2; die "node $1 did not stop in order"; }; unset "pids[$1]"; }
medium="SELECT medium || ' ' || copies FROM telesto_logs"
# told NAME WORDS: the log's history gives that for a reason.
told() { sql "$1" "SELECT reason FROM telesto_log_history" | grep -c "^$2" >/dev/null; }

on_a_folder() {
    folders=one
    BUCKET="file://$WORK/bucket"
    begin a; must is_ready a
    sql a "CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1)"
    begin b; must is_ready b
    sql b "INSERT INTO t VALUES (2)"
    is a "SELECT sum(i) FROM t" 3 || die "what the second node wrote is not seen by the first"
    is b "SELECT count(*) FROM telesto_nodes" 2 || die "the second node does not know the first"
    # The one that has the log leaves it to the other; that one alone goes on, and a new one in a folder of its own with it.
    leave a
    sql b "INSERT INTO t VALUES (3)"
    begin c; must is_ready c
    is c "SELECT sum(i) FROM t" 6 || die "a row is missing after the first node left"
    leave c; leave b
    begin b; must is_ready b
    is b "SELECT sum(i) FROM t" 6 || die "a row is missing after all were stopped"
    kill -9 "${pids[b]}"; wait "${pids[b]}" 2>/dev/null || true
    # The newest part of the log is on that node's disk: another one waits for it, and says so.
    begin w
    must grep -q "of which 1 are needed, and these do not answer: node" "$WORK/w.log"
    kill -9 "${pids[w]}"; wait "${pids[w]}" 2>/dev/null || true
    begin b; must is_ready b
    is b "SELECT sum(i) FROM t" 6 || die "a row is missing after kill -9"
    # A copy of the bucket has this cluster's token and addresses: its nodes would commit here.
    cp -a "$WORK/bucket" "$WORK/copy"
    "$bin" start --bucket "file://$WORK/copy" --data-dir "$WORK/one/y" --listen 127.0.0.1:0 --http none >"$WORK/y.log" 2>&1 && die "a node on a copy of the bucket joined"
    grep -q "is a copy of file://$WORK/bucket" "$WORK/y.log" || { cat "$WORK/y.log" >&2; die "it is not said that the bucket is a copy"; }
    # What is no node of a cluster is told so.
    "$bin" start --bucket "$BUCKET" --data-dir "$WORK/x" --listen 127.0.0.1:0 --http none --cluster off >"$WORK/x.log" 2>&1 && die "a process that is no node opened the log of another"
    grep -q "connect to that" "$WORK/x.log" || { cat "$WORK/x.log" >&2; die "no word of where the log is"; }
    leave b
    echo "a folder: told"
}

on_s3() {
    folders=two
    start_s3_node --log bucket --cluster off
    stop_node
    # A bucket of its own for this: the one above only showed that the server serves.
    BUCKET="s3://telesto/one"
    begin a; must is_ready a
    case "$(line a cluster)" in 127.0.0.1:*) ;; *) die "it listens at $(line a cluster), and the store is on this machine" ;; esac
    is a "$medium" "bucket 0" || die "a node alone keeps the log elsewhere than in the bucket: $(sql a "$medium")"
    sql a "CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1)"
    begin b; must is_ready b
    sql b "INSERT INTO t VALUES (2)"
    begin c; must is_ready c
    must is c "$medium" "quorum 3"
    # A folder belongs to its database.
    "$bin" start --bucket "s3://telesto/other" --data-dir "$WORK/two/x" --listen 127.0.0.1:0 --http none >"$WORK/x.log" 2>&1 &
    pids[x]=$!; must is_ready x; leave x
    "$bin" start --bucket "$BUCKET" --data-dir "$WORK/two/x" --listen 127.0.0.1:0 --http none >"$WORK/x.log" 2>&1 && die "a node went on in the folder of another database"
    grep -q "belongs to a database that is not in" "$WORK/x.log" || { cat "$WORK/x.log" >&2; die "it is not said whose folder it is"; }
    must told c "3 nodes serve"
    sql c "INSERT INTO t VALUES (3)"
    leave a
    is b "$medium" "quorum 3" || die "two of three are a majority: $(sql b "$medium")"
    sql b "INSERT INTO t VALUES (4)"
    leave b
    must is c "$medium" "bucket 0"
    must told c "nodes leave"
    sql c "INSERT INTO t VALUES (5)"
    is c "SELECT sum(i) FROM t" 15 || die "a row is missing at the node that is left"
    # With fewer nodes than kept it before it stays there; with as many it leaves it again.
    begin a; must is_ready a
    begin b; must is_ready b
    must is a "$medium" "quorum 3"
    # All at once: what the last ones cannot put into the bucket their disks have.
    for name in a b c; do kill "${pids[$name]}"; done
    for name in a b c; do wait "${pids[$name]}" || { cat "$WORK/$name.log" >&2; die "node $name did not stop in order"; }; unset "pids[$name]"; done
    begin b; must is_ready b
    is b "SELECT sum(i) FROM t" 15 || die "a row is missing after all were stopped at once"
    is b "$medium" "bucket 0" || die "one of three started alone: $(sql b "$medium")"
    # What is put there on request stays.
    begin a; begin c; must is_ready a; must is_ready c
    must is a "$medium" "quorum 3"
    # Only its owner moves it.
    for name in a b c; do sql "$name" "SELECT telesto_log_switch('bucket')" >/dev/null 2>&1 || true; done
    sleep 8
    is b "$medium" "bucket 0" || die "the log left the bucket, where it was put on request"
    leave a; leave b; leave c
    stop_s3
    echo "S3: told"
}

[ -n "${ONLY_S3:-}" ] || on_a_folder
on_s3
echo "nodes that are told the bucket are one database"
