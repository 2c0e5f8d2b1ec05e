#!/usr/bin/env bash
# PostgreSQL's own regression files beside PostgreSQL 15, statement by statement, each on a fresh node:
#   tests/e2e/regress.sh [FILE...]        without names: the files about roles, rights, passwords and row security
#   REGRESS_AT_LEAST=90                   the share of the statements that count that has to agree, in percent
#   REGRESS_DIFFERENCES=FOLDER            keeps what differs, a file each
# What counts is said in regress.py. The files come from Debian's source package, once.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_debian psql postgresql-client

files=("$@")
[ "${#files[@]}" -gt 0 ] || files=(privileges rowsecurity roleattributes password)

# fetch_sources: sets SOURCES to PostgreSQL's src/test/regress.
fetch_sources() {
    local folder="$TELESTO_CACHE/postgresql-source" lists
    SOURCES="$(echo "$folder"/postgresql-15.*/src/test/regress)"
    [ ! -d "$SOURCES/sql" ] || return 0
    mkdir -p "$folder"
    lists="$(mktemp -d)"
    mkdir -p "$lists/state/partial"
    echo 'deb-src http://deb.debian.org/debian bookworm main' >"$lists/sources.list"
    local apt=(apt-get -q -o "Dir::Etc::sourcelist=$lists/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$lists/state" -o APT::Sandbox::User=root)
    (
        cd "$folder" && "${apt[@]}" update >/dev/null && "${apt[@]}" source --download-only postgresql-15 >/dev/null &&
            tar xjf postgresql-15_*.orig.tar.bz2 --wildcards '*/src/test/regress/*' && rm -f postgresql-15_*
    ) || die "PostgreSQL's source package could not be fetched; is the network up? Or unpack it to $folder by hand"
    rm -rf "$lists"
    SOURCES="$(echo "$folder"/postgresql-15.*/src/test/regress)"
}

fetch_sources
POSTGRES_PORT="$(free_port)"
reference="$(tests/servers/postgres.sh start "$POSTGRES_PORT" | tail -n 1)"
trap 'tests/servers/postgres.sh stop "$POSTGRES_PORT" || true; cleanup' EXIT
psql -X -q "$reference" -c 'CREATE ROLE telesto SUPERUSER LOGIN'
export PG_ABS_SRCDIR="$SOURCES" PG_LIBDIR=/usr/lib/postgresql/15/lib PG_DLSUFFIX=.so PG_ABS_BUILDDIR="$WORK"
low=0
for name in "${files[@]}"; do
    [ -f "$SOURCES/sql/$name.sql" ] || die "PostgreSQL has no regression file $name"
    psql -X -q "$reference" -c 'DROP DATABASE IF EXISTS telesto' -c 'CREATE DATABASE telesto OWNER telesto' 2>/dev/null
    rm -rf "$WORK/node" "$WORK/bucket"
    start_node
    PGOPTIONS='-c statement_timeout=60s' python3 tests/e2e/regress.py --setup "$SOURCES/sql/test_setup.sql" \
        --ours "postgres://telesto@127.0.0.1:$PORT/telesto?sslmode=disable" \
        --theirs "postgres://telesto@127.0.0.1:$POSTGRES_PORT/telesto?sslmode=disable" \
        --at-least "${REGRESS_AT_LEAST:-90}" \
        --differences "${REGRESS_DIFFERENCES:-$WORK}/$name.txt" "$SOURCES/sql/$name.sql" || low=1
    kill -0 "$NODE" || { tail -n 40 "$WORK/node.log" >&2; die "the node ended"; }
    stop_node
done
[ "$low" = 0 ] || die "too little agrees; REGRESS_DIFFERENCES=FOLDER shows what"
