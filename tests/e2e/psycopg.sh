#!/usr/bin/env bash
# psycopg 3 against a live node; the checks are in tests/drivers/psycopg_smoke.py.
#   TARGETS="folder s3" tests/e2e/psycopg.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_wheel '"$PYTHON" -c "import psycopg"' 'psycopg[binary]==3.3.*'
checks() { "$PYTHON" tests/drivers/psycopg_smoke.py "postgres://telesto@127.0.0.1:$PORT/telesto?sslmode=disable"; }
on_each_target checks
