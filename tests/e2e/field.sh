#!/usr/bin/env bash
# TPC-H's queries on a live node and on PostgreSQL 15: the answers have to be the same. FIELD_PARTS="tpch tpcc ycsb smallbank tatp" takes more of
# what `make bench-field` runs; TPC-C ends with the consistency checks of its specification. FIELD_SCALE and FIELD_SECONDS set how much.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_debian pgbench postgresql-15
need_wheel '"$PYTHON" -c "import psycopg"' "psycopg[binary]==3.3.9"
need_wheel '[ -x "$TELESTO_CACHE/venv/bin/tpchgen-cli" ]' tpchgen-cli==4.0.0
parts="${FIELD_PARTS:-tpch}"
if [[ " $parts " == *" tpcc "* ]]; then need_go_tpc; fi
theirs="$(free_port)"
folder="$(mktemp -d)"
tests/servers/postgres.sh start "$theirs" >/dev/null
trap 'tests/servers/postgres.sh stop "$theirs"; rm -rf "$folder"; cleanup' EXIT
start_node
"$PYTHON" scripts/bench_field.py --ours "host=127.0.0.1 port=$PORT user=telesto dbname=telesto sslmode=disable" \
    --theirs "host=127.0.0.1 port=$theirs user=postgres dbname=postgres sslmode=disable" --work "$folder" --parts "$parts" \
    --rounds 1 --seconds "${FIELD_SECONDS:-5}" --scale "${FIELD_SCALE:-0.01}" --warehouses 1 \
    --tpchgen "$TELESTO_CACHE/venv/bin/tpchgen-cli" --gotpc "$TELESTO_CACHE/bin/go-tpc"
echo "field: all well"
