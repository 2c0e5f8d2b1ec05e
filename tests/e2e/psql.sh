#!/usr/bin/env bash
# psql against a live node: statements, meta-commands, errors, COPY, a restart. Exits non-zero on any mismatch.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_debian psql postgresql-client
start_node

url() { echo "postgres://telesto@127.0.0.1:$PORT/telesto?sslmode=disable"; }
ask() { psql -X -A -t -q -v ON_ERROR_STOP=1 -d "$(url)" "$@"; }
# expect NAME EXPECTED COMMAND...
expect() {
    local name="$1" expected="$2" found; shift 2
    found="$("$@" 2>&1)" || true
    if [ "$found" != "$expected" ]; then
        printf 'FAILED %s\nexpected: %s\nfound:    %s\n' "$name" "$expected" "$found" >&2
        tail -20 "$WORK/node.log" >&2
        exit 1
    fi
    echo "ok $name"
}
# contains NAME PATTERN COMMAND...
contains() {
    local name="$1" pattern="$2" found; shift 2
    found="$("$@" 2>&1)" || true
    if ! grep -qE "$pattern" <<<"$found"; then
        printf 'FAILED %s\nexpected to match: %s\nfound: %s\n' "$name" "$pattern" "$found" >&2
        exit 1
    fi
    echo "ok $name"
}

expect "select" "1" ask -c "select 1"
ask -c "create table city (id int primary key, name text not null, people bigint)" \
    -c "create index city_name on city (name)"
expect "insert returning" "1|Oslo" ask -c "insert into city values (1, 'Oslo', 700000) returning id, name"
printf '2\tBergen\t290000\n3\tBodø\t\\N\n' | ask -c "copy city from stdin"
expect "copy in" "3" ask -c "select count(*) from city"
expect "copy out" $'1\tOslo\t700000\n2\tBergen\t290000\n3\tBodø\t\\N' ask -c "copy city to stdout"
expect "variables bind" "Bergen" ask -c "\\set wanted 2" -c "select name from city where id = 2"
expect "transaction" "3" ask -c "begin" -c "delete from city" -c "rollback" -c "select count(*) from city"
contains "unique violation" 'duplicate key value violates unique constraint "city_pkey"' \
    ask -c "insert into city values (1, 'Oslo', 1)"
contains "sqlstate" '23505' ask -v VERBOSITY=verbose -c "insert into city values (1, 'Oslo', 1)"
contains "\\dt" 'city' ask -c '\dt'
contains "\\d table" 'people.*bigint' psql -X -d "$(url)" -c '\d city'
contains "\\d shows indexes" 'city_name' psql -X -d "$(url)" -c '\d city'
contains "\\di" 'city_pkey' ask -c '\di'
contains "\\l" 'telesto' ask -c '\l'
contains "\\du" 'telesto' ask -c '\du'
contains "\\conninfo" 'connected to database "telesto"' ask -c '\conninfo'

# Everything is there after an orderly restart.
stop_node
start_node
expect "restart" "3" ask -c "select count(*) from city"
expect "telesto sql reads a script" "OK" bash -c "echo 'select count(*) from city;' | '$CARGO_TARGET_DIR/debug/telesto' sql --url '$(url)' | grep -q 3 && echo OK"
expect "telesto sql fails a script with 3" "3" bash -c "echo 'nonsense;' | '$CARGO_TARGET_DIR/debug/telesto' sql --url '$(url)' 2>/dev/null; echo \$?"
stop_node
echo "psql: all well"
