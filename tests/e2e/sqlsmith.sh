#!/usr/bin/env bash
# Queries that sqlsmith makes at random from what the catalog lists, against a live node: it neither ends nor answers with
# an internal error (XX000), and each query ends. For the long run (make soak) `SQLSMITH_CORE_HOURS=4`: seed after seed, until the
# node has worked on them for so long (tests/e2e/sqlsmith.py).
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_debian psql postgresql-client
need_debian sqlsmith sqlsmith

queries="${SQLSMITH_QUERIES:-150}" seed="${SQLSMITH_SEED:-1}"
start_node
target="host=127.0.0.1 port=$PORT user=telesto dbname=telesto sslmode=disable"
psql -X -q -v ON_ERROR_STOP=1 -d "$target" <<'SQL'
CREATE TABLE part (id int PRIMARY KEY, name text NOT NULL, price numeric(10,2), made timestamptz, tags text[], extra jsonb, ok boolean);
CREATE TABLE line (part int REFERENCES part, number bigint, amount float8, day date, took interval, PRIMARY KEY (part, number));
CREATE INDEX line_by_day ON line (day);
CREATE VIEW sold AS SELECT part, sum(amount) AS amount FROM line GROUP BY part;
INSERT INTO part SELECT g, 'part ' || g, g * 1.25, timestamptz '2024-01-01' + g * interval '1 hour', ARRAY['a', 'b' || g],
    jsonb_build_object('n', g), g % 3 = 0 FROM generate_series(1, 200) g;
INSERT INTO line SELECT g % 200 + 1, g, g / 7.0, date '2024-01-01' + g % 365, g * interval '1 second' FROM generate_series(1, 1000) g;
SQL
if [ -n "${SQLSMITH_CORE_HOURS:-}" ]; then
    need_wheel '"$PYTHON" -c "import psycopg"' 'psycopg[binary]==3.3.*'
    "$PYTHON" tests/e2e/sqlsmith.py "$target" "$NODE" "$SQLSMITH_CORE_HOURS" "$seed"
    grep -aE 'internal error|panicked' "$WORK/node.log" | sort | uniq -c | sort -rn | head -n 20 && die "internal errors in the node's log"
    stop_node
    exit 0
fi
# sqlsmith ends by itself when the connection is lost more often than it can connect again.
timeout "$((queries / 2 + 600))" sqlsmith --target="$target options='-c statement_timeout=2s'" --max-queries="$queries" --seed="$seed" \
    --exclude-catalog --verbose >"$WORK/out" 2>"$WORK/err" || { tail -n 40 "$WORK/err" >&2; die "sqlsmith did not end by itself"; }
kill -0 "$NODE" || { tail -n 40 "$WORK/node.log" >&2; die "the node ended"; }
[ "$(psql -X -A -t -d "$target" -c 'SELECT count(*) FROM line')" = 1000 ] || die "the node does not answer any more"
if grep -aE 'internal error|panicked|server closed the connection' "$WORK/err" "$WORK/node.log" | sort | uniq -c | sort -rn | head -n 20 | grep . >&2; then
    die "internal errors (seed $seed; statements: run sqlsmith with --dump-all-queries)"
fi
tail -n 3 "$WORK/err"
stop_node
echo "sqlsmith: $queries queries of seed $seed, none an internal error"
