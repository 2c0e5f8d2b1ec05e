#!/usr/bin/env bash
# pgbench against a live node: initialise, the TPC-B-like run and select-only in each protocol; afterwards
# the balances must add up. Exits non-zero on any failure. SECONDS_EACH sets the length of each run.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_debian pgbench postgresql-15
start_node
export PGHOST=127.0.0.1 PGPORT="$PORT" PGUSER=telesto PGDATABASE=telesto PGSSLMODE=disable
each="${SECONDS_EACH:-5}"

pgbench -i -s 1 -q
count="$(psql -X -A -t -c 'select count(*) from pgbench_accounts')"
[ "$count" = 100000 ] || die "pgbench -i left $count accounts, expected 100000"

run() {
    local out
    out="$(pgbench "$@" -n -T "$each" 2>&1)" || { echo "$out" >&2; die "pgbench $* failed"; }
    grep -E "tps|latency average|failed" <<<"$out" | sed "s/^/  /"
    if grep -qE "number of failed transactions: [1-9]" <<<"$out"; then die "pgbench $*: transactions failed"; fi
}
for protocol in simple extended prepared; do
    say "select-only, $protocol"
    run -S -M "$protocol" -c 2 -j 2
done
say "TPC-B-like, prepared, 4 clients"
run -M prepared -c 4 -j 2 --max-tries=100
sums="$(psql -X -A -t -c "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history) and (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches) and (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches)")"
[ "$sums" = t ] || die "the balances do not add up: money was lost or made"
stop_node
echo "pgbench: all well"
