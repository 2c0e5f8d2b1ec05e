#!/usr/bin/env bash
# psql against a live node: statements, meta-commands, errors, COPY, a restart. Exits non-zero on any mismatch.
#   TARGETS="folder s3" tests/e2e/psql.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_debian psql postgresql-client

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

checks() {
    expect "select" "1" ask -c "select 1"
    ask -c "create table city (id int primary key, name text not null, people bigint)" \
        -c "create index city_name on city (name)"
    expect "insert returning" "1|Oslo" ask -c "insert into city values (1, 'Oslo', 700000) returning id, name"
    printf '2\tBergen\t290000\n3\tBodø\t\\N\n' | ask -c "copy city from stdin"
    expect "copy in" "3" ask -c "select count(*) from city"
    expect "copy out" $'1\tOslo\t700000\n2\tBergen\t290000\n3\tBodø\t\\N' ask -c "copy city to stdout"
    expect "temporary table" "7" ask -c "create temp table mine (a int)" -c "insert into mine values (7)" -c "select a from mine"
    contains "temporary table of another session" 'relation "mine" does not exist' ask -c "select a from mine"
    contains "temporary table in psql" 'pg_temp_[0-9]+.*mine' ask -c "create temp table mine (a int)" -c "\\dt"
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

    # The \\d family over a schema with one of each; what PostgreSQL 15 shows but for owners and sizes.
    ask -c "create schema shop" -c "create table shop.city (id serial primary key, name text not null default 'x')" \
        -c "comment on table shop.city is 'cities'" -c "comment on column shop.city.name is 'what it is called'" \
        -c "create view shop.big as select id from shop.city where id > 5" -c "create sequence shop.numbers start 7" \
        -c "create index city_name on shop.city (name desc)" \
        -c "create table shop.street (id bigint primary key, city int references shop.city on delete cascade, check (id > 0))"
    expect "\\dn" "shop|telesto" ask -c '\dn shop'
    expect "\\dv" "shop|big|view|telesto" ask -c '\dv shop.*'
    expect "\\ds" $'shop|city_id_seq|sequence|telesto\nshop|numbers|sequence|telesto' ask -c '\ds shop.*'
    expect "\\di+" $'shop|city_name|index|telesto|city|permanent|btree|0 bytes|\nshop|city_pkey|index|telesto|city|permanent|btree|0 bytes|' \
        ask -c '\di+ shop.city*'
    expect "\\dt+" "shop|city|table|telesto|permanent|heap|0 bytes|cities" ask -c '\dt+ shop.city'
    expect "\\d sequence" "bigint|7|1|9223372036854775807|1|no|1" ask -c '\d shop.numbers'
    expect "\\d index" "name|text|yes|name" ask -c '\d shop.city_name'
    expect "\\d view" "id|integer|||" ask -c '\d shop.big'
    contains "\\d+ column" "name .*text .*'x'::text.* extended .*what it is called|name .*text .*'x'.* extended .*what it is called" psql -X -d "$(url)" -c '\d+ shop.city'
    contains "\\d shows who refers" 'TABLE "shop.street" CONSTRAINT "street_city_fkey" FOREIGN KEY \(city\) REFERENCES shop.city\(id\) ON DELETE CASCADE' \
        psql -X -d "$(url)" -c '\d shop.city'
    contains "\\d shows checks" '"street_id_check" CHECK \(' psql -X -d "$(url)" -c '\d shop.street'
    contains "\\dp" 'shop\|city\|table' ask -c '\dp shop.city'
    contains "\\dT" 'pg_catalog\|bigint' ask -c '\dT int8'
    expect "\\df of nothing" "" ask -c '\df shop.*'
    expect "\\dx of nothing" "" ask -c '\dx nothing'
    expect "\\dF of nothing" "" ask -c '\dF nothing'
    expect "\\dD of nothing" "" ask -c '\dD shop.*'
    contains "\\sv" 'CREATE OR REPLACE VIEW shop.big AS' ask -c '\sv shop.big'
    contains "no such relation" 'Did not find any relation named "shop.nowhere"' psql -X -d "$(url)" -c '\d shop.nowhere'
    expect "\\gset" "42" bash -c "printf 'select 42 as answer \\\\gset\n\\\\echo :answer\n' | psql -X -A -t -q -d '$(url)'"
    printf '7,seven\n8,eight\n' >"$WORK/cities.csv"
    ask -c "\\copy shop.city from '$WORK/cities.csv' with (format csv)"
    ask -c "\\copy (select * from shop.city order by id desc) to '$WORK/back.csv' with (format csv)"
    expect "\\copy" $'8,eight\n7,seven' cat "$WORK/back.csv"
    echo 'select now() \watch 0.1' | psql -X -A -t -d "$(url)" >"$WORK/watched" 2>&1 &
    watching=$!
    wait_for 60 bash -c "[ \$(grep -c '^20' '$WORK/watched') -ge 3 ]" || { cat "$WORK/watched" >&2; die "\\watch gave no three results"; }
    kill "$watching" && wait "$watching" 2>/dev/null || true
    echo "ok \\watch"

    # Everything is there after an orderly restart.
    stop_node
    start_node
    expect "restart" "3" ask -c "select count(*) from city"
    expect "telesto sql reads a script" "OK" bash -c "echo 'select count(*) from city;' | '$CARGO_TARGET_DIR/debug/telesto' sql --url '$(url)' | grep -q 3 && echo OK"
    expect "telesto sql fails a script with 3" "3" bash -c "echo 'nonsense;' | '$CARGO_TARGET_DIR/debug/telesto' sql --url '$(url)' 2>/dev/null; echo \$?"
}
on_each_target checks
echo "psql: all well"
