#!/usr/bin/env bash
# Encryption with real processes: markers planted in rows, keys, definitions and spilled data are nowhere in the bucket or on the
# local disk with encryption on, and found without it; wrong and missing keys; kill -9; rotation while clients write.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_debian psql postgresql-client
bin="${TELESTO_BIN:-$CARGO_TARGET_DIR/debug/telesto}"
[ -n "${TELESTO_BIN:-}" ] || cargo build -q -p telesto
MARK=Xq7Zmarker
keys="$WORK/keys/telesto.keys"
mkdir -p "$WORK/keys"

url() { echo "postgres://telesto@127.0.0.1:$PORT/telesto?sslmode=disable"; }
ask() { psql -X -A -t -q -v ON_ERROR_STOP=1 -d "$(url)" "$@"; }
ok() { echo "ok $1"; }
kill_node() { kill -9 "$NODE"; wait "$NODE" 2>/dev/null || true; NODE=""; }
stop_node() { kill "$NODE"; wait "$NODE" || die "the stop failed"; NODE=""; }
# files_with PLACE...: the files in which a marker stands.
files_with() { grep -rlaF "$MARK" "$@" 2>/dev/null || true; }

workload() {
    ask -c "create table ${MARK}_t (id text primary key, note text)" \
        -c "create index ${MARK}_i on ${MARK}_t (note)" \
        -c "insert into ${MARK}_t select '$MARK-key-' || n, '$MARK-value-' || n from generate_series(1, 2000) n" \
        -c "update ${MARK}_t set note = note || '-again' where id like '%7'"
    # Held open while the disk is looked at: a cursor's rows, which are spilled to a nameless file.
    mkfifo "$WORK/hold"
    ask >"$WORK/held" <"$WORK/hold" &
    HOLDER=$!
    exec 9>"$WORK/hold"
    echo "begin; declare c scroll cursor for select '$MARK' || repeat(a.id, 20) from ${MARK}_t a, generate_series(1, 20) n; move last in c; \echo held" >&9
    wait_for 120 grep -qx held "$WORK/held" || die "the cursor is not filled"
}
end_workload() { exec 9>&-; wait "$HOLDER" || true; rm -f "$WORK/hold"; }

# spilled: whether a marker stands in the node's open nameless files; fails when there is none.
spilled() {
    local file found=1 any=1
    for file in /proc/"$NODE"/fd/*; do
        case "$(readlink "$file" || true)" in
        "$WORK"/node/temp/*deleted*) any=0; ! grep -qaF "$MARK" "$file" || found=0 ;;
        esac
    done
    [ "$any" = 0 ] || die "nothing was spilled to the node's folder"
    return "$found"
}

for mode in off on; do
    rm -rf "$WORK/node" "$WORK/bucket"
    options=()
    if [ "$mode" = on ]; then
        "$bin" keys create "$keys" >/dev/null
        options=(--encryption-key-file "$keys")
    fi
    start_node --checkpoint-interval 1s ${options[@]+"${options[@]}"}
    workload
    if [ "$mode" = on ]; then
        ! spilled || die "a marker is in spilled rows"
    else
        spilled || die "no marker is in spilled rows without encryption: the search finds nothing"
    fi
    # As it is while it runs (log on disk, archive), and after folds.
    for moment in running folded; do
        [ "$moment" = running ] || sleep 4
        if [ "$mode" = on ]; then
            found="$(files_with "$WORK/bucket" "$WORK/node")"
            [ -z "$found" ] || die "a marker is in clear in $found"
        elif [ "$moment" = running ]; then
            [ -n "$(files_with "$WORK/node")" ] || die "without encryption no marker is in the local log: the search finds nothing"
        else
            [ -n "$(files_with "$WORK/bucket")" ] || die "without encryption no marker is in the bucket: the search finds nothing"
        fi
    done
    if [ "$mode" = off ]; then
        grep -qaF "$MARK" -r "$WORK"/bucket --include='*.sst' || die "no marker is in the checkpoint without encryption"
    else
        [ -n "$(find "$WORK/bucket" -name '*.sst')" ] || die "there is no checkpoint"
    fi
    end_workload
    ok "markers, encryption $mode"
    [ "$mode" = on ] || stop_node
done

ask -c "insert into ${MARK}_t values ('before the kill', 'x')"
kill_node
start_node --encryption-key-file "$keys"
[ "$(ask -c "select count(*) from ${MARK}_t")" = 2001 ] || die "rows are missing after kill -9"
ok "kill -9 and restart"

# Rotation while clients write.
(for n in $(seq 1 60); do ask -c "insert into ${MARK}_t values ('w$n', 'x')" && echo "$n"; done >"$WORK/written") &
writer=$!
for name in a b c; do
    "$bin" keys rotate --bucket "$BUCKET" --encryption-key-file "$keys" >/dev/null
done
wait "$writer"
[ "$(wc -l <"$WORK/written")" = 60 ] || die "writes failed during rotation"
shown="$("$bin" keys show --bucket "$BUCKET" --encryption-key-file "$keys")"
grep -q "version 4" <<<"$shown" || die "keys show: $shown"
kill_node
"$bin" keys create "$keys" --name second >/dev/null
start_node --encryption-key-file "$keys"
shown="$("$bin" keys rotate --bucket "$BUCKET" --encryption-key-file "$keys")"
grep -q "wrapped with key second" <<<"$shown" || die "keys rotate: $shown"
[ "$(ask -c "select count(*) from ${MARK}_t")" = 2061 ] || die "rows are missing after rotation"
ask -c "insert into ${MARK}_t values ('after', 'x')"
kill_node
start_node --encryption-key-file "$keys"
[ "$(ask -c "select count(*) from ${MARK}_t")" = 2062 ] || die "rows are missing after the second rotation"
"$bin" log inspect --bucket "$BUCKET" --encryption-key-file "$keys" >/dev/null || die "log inspect"
stop_node
[ -z "$(files_with "$WORK/bucket" "$WORK/node")" ] || die "a marker is in clear at the end"
ok "rotation under load, of data keys and of the key file's key"

# Refusals: nothing is written.
state() { (cd "$WORK" && find bucket node -type f -exec cksum {} + 2>/dev/null | sort); }
before="$(state)"
refused() {
    local name="$1" pattern="$2" out; shift 2
    if out="$("$@" 2>&1)"; then die "$name was not refused"; fi
    grep -qE "$pattern" <<<"$out" || die "$name: $out"
    [ "$(state)" = "$before" ] || die "$name: something was written"
    ok "$name"
}
start=("$bin" start --bucket "$BUCKET" --data-dir "$WORK/node" --listen 127.0.0.1:0 --http none)
"$bin" keys create "$WORK/keys/other" --name key-1 >/dev/null
"$bin" keys create "$WORK/keys/other" --name second >/dev/null
"$bin" keys create "$WORK/keys/third" --name third >/dev/null
refused "no key" "is encrypted: name its key file" "${start[@]}"
refused "another key of the same name" "does not open" "${start[@]}" --encryption-key-file "$WORK/keys/other"
refused "no key of that name" '"second"' "${start[@]}" --encryption-key-file "$WORK/keys/third"
refused "no such file" "cannot be read" "${start[@]}" --encryption-key-file "$WORK/keys/nothing"
refused "a key service" "it is a URL" "${start[@]}" --encryption-key-file awskms://x
refused "log inspect without key" "is encrypted" "$bin" log inspect --bucket "$BUCKET"
refused "cluster status without key" "is encrypted" "$bin" cluster status --bucket "$BUCKET"
rm -rf "$WORK/node" "$WORK/bucket"
start_node
ask -c "create table t (id int primary key)"
stop_node
before="$(state)"
refused "a key on a database in clear" "no encrypted database" "${start[@]}" --encryption-key-file "$keys"

# Turning over a database in clear: killed while its newest commits are in the local log alone, turned over while clients write.
turn=("$bin" keys encrypt --bucket "$BUCKET" --encryption-key-file "$keys")
rm -rf "$WORK/node" "$WORK/bucket"
start_node --checkpoint-interval 1s
ask -c "create table ${MARK}_t (id text primary key, note text)" \
    -c "insert into ${MARK}_t select '$MARK-key-' || n, '$MARK-value-' || n from generate_series(1, 2000) n"
sleep 3
ask -c "insert into ${MARK}_t values ('before the kill', '$MARK')"
kill_node
[ -n "$(files_with "$WORK/node")" ] || die "no marker is in the local log: the search finds nothing"
before="$(state)"
refused "turning over with nodes perhaps running" "stop every node" "${turn[@]}"
refused "ending what has not begun" "nothing is being turned over" "${turn[@]}" --finish --nodes-are-stopped
"${turn[@]}" --nodes-are-stopped >"$WORK/turned" 2>&1 &
turner=$!
wait_for 60 grep -q "start its nodes now" "$WORK/turned" || die "the turning over did not begin: $(cat "$WORK/turned")"
start_node --checkpoint-interval 1s --encryption-key-file "$keys"
[ "$(ask -c "select count(*) from ${MARK}_t")" = 2001 ] || die "rows are missing while it is turned over"
(for n in $(seq 1 40); do ask -c "insert into ${MARK}_t values ('w$n', '$MARK')" && echo "$n"; done >"$WORK/written") &
writer=$!
wait "$turner" || die "the turning over failed: $(cat "$WORK/turned")"
wait "$writer"
[ "$(wc -l <"$WORK/written")" = 40 ] || die "writes failed while it was turned over"
# It can be run again, and by a node that is running.
out="$("${turn[@]}")" && grep -q "so already" <<<"$out" || die "it cannot be run again: $out"
found="$(files_with "$WORK/bucket" "$WORK/node")"
[ -z "$found" ] || die "a marker is in clear after it was turned over: $found"
kill_node
start_node --encryption-key-file "$keys"
out="$("${turn[@]}" --finish)" && grep -q "nothing in clear" <<<"$out" || die "it was not ended: $out"
refused_now() { ! "${turn[@]}" >/dev/null 2>&1; }
refused_now || die "an encrypted database was turned over again"
[ "$(ask -c "select count(*) from ${MARK}_t")" = 2041 ] || die "rows are missing after it was turned over"
kill_node
start_node --encryption-key-file "$keys"
[ "$(ask -c "select count(*), count(distinct id) from ${MARK}_t")" = "2041|2041" ] || die "rows are missing after a restart"
"$bin" log inspect --bucket "$BUCKET" --encryption-key-file "$keys" >/dev/null
stop_node
before="$(state)"
refused "a database that was turned over, without key" "is encrypted" "${start[@]}"
ok "turning over"

# A bucket that is put back: a node remembers what it has seen of it.
seen_more() { [ "$(cksum "$WORK/node/seen" 2>/dev/null || true)" != "$last" ]; }
for how in bucket quorum stopped; do
    log="$how"
    [ "$how" != stopped ] || log=bucket
    rm -rf "$WORK/node" "$WORK/bucket" "$WORK/copy"
    start_node --log "$log"
    ask -c "create table t (id int primary key)" -c "insert into t values (1)"
    kill "$NODE"; wait "$NODE" || die "the stop failed"; NODE=""
    cp -a "$WORK/bucket" "$WORK/copy"
    start_node
    ask -c "insert into t values (2)"
    if [ "$how" = stopped ]; then
        # At the stop, too, however short it lived.
        kill "$NODE"; wait "$NODE" || die "the stop failed"; NODE=""
    else
        # It writes down what it has seen every five seconds.
        last="$(cksum "$WORK/node/seen" 2>/dev/null || true)"
        wait_for 30 seen_more || die "what was seen is not written down"
        sleep 6
        kill_node
    fi
    rm -rf "$WORK/bucket"; cp -a "$WORK/copy" "$WORK/bucket"
    # Nothing is written but that the node has started once more.
    if out="$("${start[@]}" 2>&1)"; then die "a bucket that was put back ($how) was not noticed"; fi
    grep -q "put back to an earlier state" <<<"$out" || die "put back ($how): $out"
    diff -r -x nodes -x lives "$WORK/bucket" "$WORK/copy" >/dev/null || die "put back ($how): something was written"
    [ "$log" = quorum ] || {
        start_node --accept-older-bucket
        [ "$(ask -c "select count(*) from t")" = 1 ] || die "the older bucket has other rows"
        stop_node
        start_node
        stop_node
    }
    ok "a bucket put back ($how)"
done

# Regions, each with keys of its own from the beginning.
declare -A of
for name in us eu; do
    "$bin" keys create "$WORK/keys/$name.keys" >/dev/null
    of[$name]="$(free_port)"
done
region() { local command="$1" name="$2"; shift 2; "$bin" region "$command" "$@" --bucket "file://$WORK/$name/bucket" --encryption-key-file "$WORK/keys/$name.keys" 2>/dev/null; }
region_starts() { # NAME
    local port; port="$(free_port)"
    "$bin" start --bucket "file://$WORK/$1/bucket" --data-dir "$WORK/$1/node" --listen "127.0.0.1:$port" --http none --region "127.0.0.1:${of[$1]}" \
        --encryption-key-file "$WORK/keys/$1.keys" >"$WORK/$1.log" 2>&1 &
    of[$1-pid]=$! of[$1-sql]="postgres://telesto@127.0.0.1:$port/telesto?sslmode=disable"
    wait_for 120 grep -qx 'Ready\.' "$WORK/$1.log" || { cat "$WORK/$1.log" >&2; die "region $1 did not start"; }
}
stop_regions() { for name in us eu; do [ -z "${of[$name-pid]:-}" ] || kill -9 "${of[$name-pid]}" 2>/dev/null || true; done; cleanup; }
trap stop_regions EXIT
mkdir -p "$WORK/us/bucket" "$WORK/eu/bucket"
region init us us --address "127.0.0.1:${of[us]}" >/dev/null || die "an encrypted region is not made"
region_starts us
text="$(region invite us eu | tail -n 1)"
region join eu "$text" --address "127.0.0.1:${of[eu]}" >/dev/null || die "an encrypted region does not join"
region_starts eu
psql -X -q -d "${of[us-sql]}" -c "create table ${MARK}_r (id text primary key)" -c "insert into ${MARK}_r values ('$MARK-1')"
there() { [ "$(psql -X -A -t -q -d "${of[eu-sql]}" -c "select count(*) from ${MARK}_r" 2>/dev/null)" = 1 ]; }
wait_for 60 there || die "the row does not come to the other region"
for name in us eu; do kill "${of[$name-pid]}"; wait "${of[$name-pid]}" || die "the stop of $name failed"; done
[ -z "$(files_with "$WORK/us" "$WORK/eu")" ] || die "a marker is in clear in a region"
ok "encrypted regions"
echo "encryption: all well"
