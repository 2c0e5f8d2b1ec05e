#!/usr/bin/env bash
# SQLAlchemy's own test suite for dialects (sqlalchemy.testing.suite), with its PostgreSQL dialect and psycopg 3, against a live node.
# What does not pass is in tests/drivers/sqlalchemy_suite/known.txt, with reasons; any other failure, and any entry that passes, fails.
#   tests/e2e/sqlalchemy_suite.sh [pytest options…]
#   TARGETS=s3 tests/e2e/sqlalchemy_suite.sh          on an S3 bucket
#   TARGETS=postgres tests/e2e/sqlalchemy_suite.sh    the suite itself, on PostgreSQL 15
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_python
hold_setup
if ! "$PYTHON" -m pip install --quiet --disable-pip-version-check -r tests/drivers/requirements.txt; then
    die "pip could not install what tests/drivers/requirements.txt lists; is the network up?"
fi
release_setup

# suite SERVER URL [pytest options…]
suite() {
    local server="$1" url="$2"; shift 2
    "$PYTHON" - "${url/+psycopg/}" <<'PY'
import sys, psycopg
with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    for schema in ("test_schema", "test_schema_2"):
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
PY
    # How many fail is told by comparing with the list: not by pytest's exit code. A test draws the isolation level it tries from a set,
    # whose order is fixed here: a failure comes again.
    (cd tests/drivers/sqlalchemy_suite && PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 "$PYTHON" -m pytest -q -p no:cacheprovider --maxfail=10000 \
        --dburi "$url" --junitxml="$WORK/report.xml" "$@") >"$WORK/pytest.log" 2>&1 || true
    [ -s "$WORK/report.xml" ] || { tail -n 30 "$WORK/pytest.log" >&2; die "the suite did not run"; }
    cp "$WORK/pytest.log" "${LOG:-/dev/null}"
    "$PYTHON" tests/drivers/sqlalchemy_suite/compare.py "$WORK/report.xml" "$server" ${WRITE:+--write}
}

case "${TARGETS:-folder}" in
folder | s3)
    on_node() { suite telesto "postgresql+psycopg://telesto@127.0.0.1:$PORT/telesto?sslmode=disable" "$@"; }
    on_each_target on_node "$@"
    ;;
postgres)
    # As root, the server runs as a user of its own, who must get to its folder.
    chmod 711 "$WORK"
    reference="$(free_port)"
    tests/servers/postgres.sh start "$reference" "$WORK/postgres" >/dev/null
    trap 'tests/servers/postgres.sh stop "$reference" "$WORK/postgres"; cleanup' EXIT
    suite postgres "postgresql+psycopg://postgres@127.0.0.1:$reference/postgres" "$@"
    ;;
*) die "no target $TARGETS; there are folder, s3 and postgres" ;;
esac
