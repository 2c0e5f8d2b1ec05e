#!/usr/bin/env bash
# Throughput with and without encryption: two nodes on one machine and disk, loaded in turns with the same work; medians and ratios.
#   BENCH_ROUNDS=3 BENCH_SECONDS=5 BENCH_ROWS=20000 scripts/bench_encryption.sh
#   TELESTO_BIN=target/debug/telesto scripts/bench_encryption.sh     takes a program that is built
# The bucket log's lines are nodes whose every commit is an object.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
rounds="${BENCH_ROUNDS:-3}" seconds="${BENCH_SECONDS:-5}" rows="${BENCH_ROWS:-20000}"
bin="${TELESTO_BIN:-}"
if [ -z "$bin" ]; then
    say "building (release)"
    cargo build --release -p telesto
    bin="$CARGO_TARGET_DIR/release/telesto"
fi
work="$(mktemp -d)"
nodes=()
finish() { for node in ${nodes[@]+"${nodes[@]}"}; do kill -9 "$node" 2>/dev/null || :; wait "$node" 2>/dev/null || :; done; rm -rf "$work"; }
trap finish EXIT
"$bin" keys create "$work/keys" >/dev/null
declare -A port
# node NAME [options…]
node() {
    local name="$1"; shift
    "$bin" start --bucket "file://$work/$name/bucket" --data-dir "$work/$name/node" --listen 127.0.0.1:0 --http none --memory 512MiB "$@" >"$work/$name.log" 2>&1 &
    nodes+=("$!")
    wait_for 120 grep -qx 'Ready\.' "$work/$name.log" || { cat "$work/$name.log"; die "the node did not start"; }
    port[$name]="$(awk '$1 == "postgres" { sub(/.*:/, "", $2); print $2; exit }' "$work/$name.log")"
}
middle() { sort -g | awk '{v[NR]=$1} END {print v[int((NR + 1) / 2)]}'; }
for log in quorum bucket; do
    node "clear-$log" --log "$log"
    node "encrypted-$log" --log "$log" --encryption-key-file "$work/keys"
done
# rate NAME WORKLOAD
rate() {
    "$bin" bench --url "postgres://telesto@127.0.0.1:${port[$1]}/telesto" --workload "$2" --clients 8 --seconds "$seconds" --rows "$rows" --json |
        python3 -c 'import json, sys; report = json.load(sys.stdin); print(report["transactions"] / report["seconds"])'
}
printf '%-24s %12s %12s %8s\n' work "clear /s" "encrypted /s" ratio
for log in quorum bucket; do
    for workload in read write transfer; do
        : >"$work/clear"; : >"$work/encrypted"
        for round in $(seq "$rounds"); do
            order=(clear encrypted)
            [ $((round % 2)) = 1 ] || order=(encrypted clear)
            for side in "${order[@]}"; do rate "$side-$log" "$workload" >>"$work/$side"; done
        done
        awk -v name="$workload, $log log" -v clear="$(middle <"$work/clear")" -v encrypted="$(middle <"$work/encrypted")" \
            'BEGIN { printf "%-24s %12.0f %12.0f %8.2f\n", name, clear, encrypted, encrypted / clear }'
    done
done
