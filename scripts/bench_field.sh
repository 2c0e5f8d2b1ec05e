#!/usr/bin/env bash
# Workloads of the field beside PostgreSQL 15 (fsync on), both with the settings they come with, in turns: TPC-H's 22 queries (answers are
# compared), TPC-C by go-tpc, YCSB, SmallBank and TATP by pgbench. Arguments go to bench_field.py:
#   scripts/bench_field.sh --parts "tpch tpcc" --rounds 5 --scale 0.1 --warehouses 2 --clients 4 --seconds 20
#   TELESTO_BIN=…/telesto takes a program that is built; BENCH_MEMORY=512MiB
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_debian pgbench postgresql-15
need_wheel '"$PYTHON" -c "import psycopg"' "psycopg[binary]==3.3.9"
need_wheel '[ -x "$TELESTO_CACHE/venv/bin/tpchgen-cli" ]' tpchgen-cli==4.0.0
need_go_tpc
if [ -z "${TELESTO_BIN:-}" ]; then
    need_rust
    say "building (release)"
    cargo build --release --quiet -p telesto
    TELESTO_BIN="$CARGO_TARGET_DIR/release/telesto"
fi
work="$(mktemp -d)"
theirs="$(free_port)" ours="$(free_port)" http="$(free_port)"
FSYNC=on tests/servers/postgres.sh start "$theirs" >/dev/null
"$TELESTO_BIN" start --bucket "file://$work/bucket" --data-dir "$work/node" --listen "127.0.0.1:$ours" --http "127.0.0.1:$http" \
    ${BENCH_MEMORY:+--memory "$BENCH_MEMORY"} >"$work/telesto.log" 2>&1 &
node=$!
finish() { kill -9 "$node" 2>/dev/null || :; wait "$node" 2>/dev/null || :; tests/servers/postgres.sh stop "$theirs"; rm -rf "$work"; }
trap finish EXIT
wait_for 60 curl -fsS "http://127.0.0.1:$http/health" || { cat "$work/telesto.log"; die "the node does not answer"; }
"$PYTHON" scripts/bench_field.py --ours "host=127.0.0.1 port=$ours user=telesto dbname=telesto sslmode=disable" \
    --theirs "host=127.0.0.1 port=$theirs user=postgres dbname=postgres sslmode=disable" --work "$work" \
    --tpchgen "$TELESTO_CACHE/venv/bin/tpchgen-cli" --gotpc "$TELESTO_CACHE/bin/go-tpc" "$@"
