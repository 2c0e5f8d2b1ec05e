#!/usr/bin/env bash
# A plain pg_dump file of PostgreSQL 15, loaded unmodified by psql with ON_ERROR_STOP: definitions, rows and sequences must then be those of
# PostgreSQL. Then the way back: what pg_dump 15 writes of Telesto's database is loaded into PostgreSQL and into Telesto, with the same
# comparisons. Exits non-zero on any difference.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_debian psql postgresql-client
PG="$(free_port)"
PGDIR="$(mktemp -d)"
chmod 755 "$PGDIR"
stop_both() {
    tests/servers/postgres.sh stop "$PG" "$PGDIR/pg" || true
    rm -rf "$PGDIR"
    cleanup
}
trap stop_both EXIT
tests/servers/postgres.sh start "$PG" "$PGDIR/pg" >/dev/null
start_node

theirs() { psql -X -A -t -q -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$PG" -U postgres -d postgres "$@"; }
ours() { PGSSLMODE=disable psql -X -A -t -q -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$PORT" -U telesto -d telesto "$@"; }

theirs -f tests/e2e/pg_dump.sql >/dev/null
/usr/lib/postgresql/15/bin/pg_dump -h 127.0.0.1 -p "$PG" -U postgres postgres >"$WORK/theirs.sql"
# The dump says that everything is postgres': as on another PostgreSQL, that role is made first.
ours -c "CREATE ROLE postgres"
ours -f "$WORK/theirs.sql" >"$WORK/load.log" 2>&1 || {
    cat "$WORK/load.log" >&2
    die "the dump did not load"
}
echo "ok the dump loads"

# same NAME QUERY: both give the same, in the order asked for.
same() {
    theirs -c "$2" >"$WORK/a"
    ours -c "$2" >"$WORK/b"
    [ -s "$WORK/a" ] || die "$1: PostgreSQL has nothing to compare"
    if ! cmp -s "$WORK/a" "$WORK/b"; then
        echo "FAILED $1" >&2
        diff "$WORK/a" "$WORK/b" >&2 || true
        exit 1
    fi
    echo "ok $1"
}
all_same() {
    for table in shop.customer shop.orders public.kinds; do
        same "rows of $table" "SELECT * FROM $table ORDER BY 1, 2"
    done
    same "rows of public.kid" "SELECT * FROM public.kid ORDER BY id"
    same "rows of public.nopk" "SELECT a, coalesce(b, '<null>') FROM public.nopk ORDER BY a"
    same "bit strings" "SELECT * FROM public.flags ORDER BY 1"
    same "ranges" "SELECT * FROM public.spans ORDER BY 1"
    same "views of ranges" "SELECT * FROM public.overlapping ORDER BY 1, 2"
    same "views of bit strings" "SELECT * FROM public.masked ORDER BY 1, 2"
    same "views" "SELECT * FROM shop.big ORDER BY id"
    same "aggregates in views" "SELECT * FROM counts"
    same "positions of sequences" "SELECT last_value, is_called FROM shop.free"
    same "columns" "SELECT table_schema, table_name, column_name, ordinal_position, is_nullable, data_type, character_maximum_length,
        numeric_precision, numeric_scale, is_identity, identity_generation, identity_start, identity_increment, is_generated, generation_expression,
        column_default
        FROM information_schema.columns WHERE table_schema IN ('shop', 'public') ORDER BY 1, 2, 4"
    same "keys" "SELECT conrelid::regclass, conname, contype, condeferrable, condeferred, pg_get_constraintdef(c.oid) FROM pg_constraint c
        JOIN pg_namespace n ON n.oid = connamespace WHERE nspname IN ('shop', 'public') AND contype IN ('p', 'u', 'f', 'c') ORDER BY conname"
    same "indexes" "SELECT indexdef FROM pg_indexes WHERE schemaname IN ('shop', 'public') ORDER BY 1"
    same "sequences" "SELECT schemaname, sequencename, data_type, start_value, min_value, max_value, increment_by, cycle, cache_size
        FROM pg_sequences ORDER BY 1, 2"
    same "comments" "SELECT description FROM pg_description d WHERE classoid IN ('pg_class'::regclass, 'pg_constraint'::regclass, 'pg_namespace'::regclass)
        AND objoid >= 16384 ORDER BY 1"
}
all_same

dump_ours() { PGSSLMODE=disable /usr/lib/postgresql/15/bin/pg_dump -O -x -h 127.0.0.1 -p "$PORT" -U telesto telesto; }
# goes_back INTO: what pg_dump writes of our database, loaded into INTO (a function that runs psql), is what it was.
goes_back() {
    "$1" -f "$WORK/ours.sql" >"$WORK/load.log" 2>&1 || {
        cat "$WORK/load.log" >&2
        die "what pg_dump wrote of our database did not load"
    }
}
dump_ours >"$WORK/ours.sql"
theirs -c "CREATE DATABASE back"
(
    ours() { psql -X -A -t -q -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$PG" -U postgres -d back "$@"; }
    goes_back ours
    echo "ok PostgreSQL loads our dump"
    all_same
)
ours -c "DROP SCHEMA shop CASCADE; DROP TABLE public.kid, public.kinds, public.nopk, public.flags, public.spans CASCADE"
goes_back ours
echo "ok our dump loads here"
all_same
# What is loaded goes on as it did there: both draw the same values and refuse the same rows.
same "identity goes on" "INSERT INTO shop.customer (name) VALUES ('new') RETURNING id, full_name, mood"
same "serial goes on" "INSERT INTO shop.orders (customer) VALUES (10) RETURNING id, total"
for statement in "INSERT INTO shop.customer (name, email) VALUES ('x', 'ann@x')" "INSERT INTO shop.customer (name) VALUES ('')" \
    "INSERT INTO shop.orders (customer) VALUES (999)" "INSERT INTO kinds VALUES (1, 1)"; do
    for side in theirs ours; do
        if $side -c "$statement" >/dev/null 2>&1; then die "$side took: $statement"; fi
    done
done
echo "ok constraints hold on both sides"
