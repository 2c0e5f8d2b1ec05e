#!/usr/bin/env bash
# Ratios measured side by side in one run: key-value work beside plain SlateDB; pgbench and the bookstore beside PostgreSQL 15
# (fsync on).
#   BENCH_ROUNDS=5 BENCH_SECONDS=10 BENCH_SCALE=10 BENCH_WARM=60 BENCH_MEMORY=4GiB scripts/bench.sh
#   BENCH_PARTS="keyvalue pgbench hot bookstore" BENCH_CUSTOMERS=144000 BENCH_ITEMS=10000 BENCH_COPY_ROWS=5000000 BENCH_JSON=report.json
# Both are measured warm: after loading, each serves select-only from 8 clients for BENCH_WARM seconds. PostgreSQL runs with
# its defaults and the page cache of the machine; Telesto keeps its caches itself, in BENCH_MEMORY.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
need_debian pgbench postgresql-15
rounds="${BENCH_ROUNDS:-5}" seconds="${BENCH_SECONDS:-10}" scale="${BENCH_SCALE:-10}"
warm="${BENCH_WARM:-60}" memory="${BENCH_MEMORY:-4GiB}" parts=" ${BENCH_PARTS:-keyvalue pgbench hot bookstore} "
customers="${BENCH_CUSTOMERS:-144000}" items="${BENCH_ITEMS:-10000}" copy_rows="${BENCH_COPY_ROWS:-5000000}"

say "building (release)"
cargo build --release -p telesto -p telesto-demo -p telesto-bench
if [[ "$parts" == *" keyvalue "* ]]; then
    say "key-value, beside plain SlateDB"
    "$CARGO_TARGET_DIR/release/telesto-bench" --rounds "$rounds"
fi
[[ "$parts" == *" pgbench "* || "$parts" == *" hot "* || "$parts" == *" bookstore "* ]] || exit 0

work="$(mktemp -d)"
theirs="$(free_port)" ours="$(free_port)" http="$(free_port)"
FSYNC=on tests/servers/postgres.sh start "$theirs" >/dev/null
"$CARGO_TARGET_DIR/release/telesto" start --bucket "file://$work/bucket" --data-dir "$work/node" \
    --listen "127.0.0.1:$ours" --http "127.0.0.1:$http" --memory "$memory" >"$work/telesto.log" 2>&1 &
node=$!
# Nothing of the node is kept: it is not waited for until it has folded all, and is gone before its folder is removed.
finish() { kill -9 "$node" 2>/dev/null || :; wait "$node" 2>/dev/null || :; tests/servers/postgres.sh stop "$theirs"; rm -rf "$work"; }
trap finish EXIT
wait_for 60 curl -fsS "http://127.0.0.1:$http/health" || { cat "$work/telesto.log"; die "the node does not answer"; }
export PGSSLMODE=disable
on_ours=(-h 127.0.0.1 -p "$ours" -U telesto telesto)
on_theirs=(-h 127.0.0.1 -p "$theirs" -U postgres postgres)
tps() { pgbench "$@" 2>/dev/null | awk '/^tps/ {print $3}'; }
middle() { sort -g | awk '{v[NR]=$1} END {print v[int((NR + 1) / 2)]}'; }
pgbench_part() {
    say "pgbench, beside PostgreSQL (scale $scale, $rounds rounds of $seconds s, medians)"
    for server in ours theirs; do
        declare -n on="on_$server"
        say "loading and warming: $server"
        pgbench -i -q -s "$scale" "${on[@]}" 2>&1 | tail -n 1
        [ "$warm" = 0 ] || pgbench -n -S -c 8 -j 1 -M prepared -T "$warm" "${on[@]}" >/dev/null 2>&1
    done
    printf '%-24s %8s %12s %12s %8s\n' work clients Telesto PostgreSQL ratio
    for clients in 1 8; do
        for name in "select-only" "TPC-B-like"; do
            options=(-n -T "$seconds" -c "$clients" -j 1 -M prepared)
            [ "$name" = select-only ] && options+=(-S)
            : >"$work/ours"; : >"$work/theirs"
            for _ in $(seq "$rounds"); do
                tps "${options[@]}" "${on_ours[@]}" >>"$work/ours"
                tps "${options[@]}" "${on_theirs[@]}" >>"$work/theirs"
            done
            a="$(middle <"$work/ours")" b="$(middle <"$work/theirs")"
            printf '%-24s %8s %12.0f %12.0f %8.2f\n' "$name" "$clients" "$a" "$b" "$(awk "BEGIN{print $a/$b}")"
        done
    done
}

# 64 clients add to one row: by addition, in the ordinary way, and on PostgreSQL.
hot_part() {
    say "one row that 64 clients add to ($rounds rounds of $seconds s, medians)"
    echo "UPDATE hot SET n = n + 1 WHERE id = 1" >"$work/hot.sql"
    local create="DROP TABLE IF EXISTS hot; CREATE TABLE hot (id int PRIMARY KEY, n bigint NOT NULL CHECK (n >= 0)); INSERT INTO hot VALUES (1, 0)"
    for server in ours theirs; do
        declare -n on="on_$server"
        psql -qX "${on[@]}" -c "$create" 2>/dev/null
    done
    local options=(-n -T "$seconds" -c 64 -j 2 -M prepared -f "$work/hot.sql")
    for _ in $(seq "$rounds"); do
        tps "${options[@]}" "${on_ours[@]}" >>"$work/hot.added"
        PGOPTIONS="-c telesto.commutative_updates=off" tps "${options[@]}" "${on_ours[@]}" >>"$work/hot.plain"
        tps "${options[@]}" "${on_theirs[@]}" >>"$work/hot.theirs"
    done
    for name in added plain theirs; do printf '%-24s %12.0f\n' "$name" "$(middle <"$work/hot.$name")"; done
    awk "BEGIN{printf \"%-24s %12.2f\\n\", \"added / plain\", $(middle <"$work/hot.added") / $(middle <"$work/hot.plain")}"
}

# The shop is loaded into both first; the rounds take turns (docs/operating/bench.md).
bookstore_part() {
    say "the bookstore, beside PostgreSQL ($customers customers, $items items, $rounds rounds of $seconds s, medians)"
    "$CARGO_TARGET_DIR/release/telesto-demo" bench compare "Telesto=postgres://telesto@127.0.0.1:$ours/telesto" \
        "PostgreSQL=$(tests/servers/postgres.sh url "$theirs")" --customers "$customers" --items "$items" \
        --rounds "$rounds" --seconds "$seconds" --copy-rows "$copy_rows" --json "${BENCH_JSON:-$work/bookstore.json}" \
        --workload point-read,join-1,join-2,join-3,analytical,shopping,ordering,read-write,copy
}
if [[ "$parts" == *" pgbench "* ]]; then pgbench_part; fi
if [[ "$parts" == *" hot "* ]]; then hot_part; fi
if [[ "$parts" == *" bookstore "* ]]; then bookstore_part; fi
