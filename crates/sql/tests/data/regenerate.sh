#!/bin/sh
# Writes expressions.expected from expressions.in with a real PostgreSQL 15 (see tests/servers/postgres.sh).
#   regenerate.sh URL
# Each line: the type and value PostgreSQL gives, or ! and the SQLSTATE.
set -eu
url=${1:?usage: regenerate.sh URL}
here=$(dirname "$0")
{
    cat <<'SQL'
\set QUIET 1
set timezone = 'UTC';
create function pg_temp.answer(expression text) returns text language plpgsql as $body$
declare result text;
begin
    execute format('select pg_typeof(%1$s)::text || '' | '' || case when (%1$s) is null then ''NULL'' else format(''%%s'', %1$s) end', expression) into result;
    return replace(replace(result, E'\n', '\n'), E'\t', '\t');
exception when others then return '!' || sqlstate;
end $body$;
\pset format unaligned
\pset tuples_only on
SQL
    grep -v '^#' "$here/expressions.in" | sed "s/.*/select pg_temp.answer(\$expr\$&\$expr\$);/"
} | psql -q -X -v ON_ERROR_STOP=1 "$url" > "$here/expressions.answers"
grep -v '^#' "$here/expressions.in" | paste -d '\n' - "$here/expressions.answers" > "$here/expressions.expected"
rm "$here/expressions.answers"
