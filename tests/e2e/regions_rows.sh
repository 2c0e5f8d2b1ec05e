#!/usr/bin/env bash
# Rows placed by value, with real processes: two regions, each with its own bucket; what is not placed in one is in no file of its bucket
# or its node, is read where it is, and is there after kill -9; a rule that is changed moves rows, and takes them away again.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_debian psql postgresql-client
bin="${TELESTO_BIN:-$CARGO_TARGET_DIR/debug/telesto}"
[ -n "${TELESTO_BIN:-}" ] || cargo build -q -p telesto
US=Kq7Zusmarker
EU=Lw8Veumarker
declare -A pids link sql
stop_all() { for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null || true; done; cleanup; }
trap stop_all EXIT
bucket_of() { echo "file://$WORK/$1/bucket"; }
start_region() { # NAME
    : >"$WORK/$1.log"
    "$bin" start --bucket "$(bucket_of "$1")" --data-dir "$WORK/$1/node" --listen 127.0.0.1:0 --http none --region "127.0.0.1:${link[$1]}" \
        --checkpoint-interval 1s >"$WORK/$1.log" 2>&1 &
    pids[$1]=$!
    wait_for 120 grep -qx 'Ready\.' "$WORK/$1.log" || { cat "$WORK/$1.log" >&2; die "region $1 did not start"; }
    sql[$1]="$(awk '$1 == "postgres" { sub(/.*:/, "", $2); print $2; exit }' "$WORK/$1.log")"
}
ask() { local at="$1"; shift; psql -X -A -t -q -v ON_ERROR_STOP=1 -d "postgres://telesto@127.0.0.1:${sql[$at]}/telesto?sslmode=disable" "$@"; }
own() { local at="$1"; shift; PGOPTIONS='-c telesto.forward_reads=off' ask "$at" "$@"; }
is() { [ "$1" = "$2" ] || die "$3: \"$1\" and not \"$2\""; }
gives() { local wanted="$1"; shift; [ "$("$@" 2>/dev/null)" = "$wanted" ]; }
holds() { grep -rqaF "$2" "$WORK/$1"; }
ok() { echo "ok $1"; }

for name in us eu; do mkdir -p "$WORK/$name"; link[$name]="$(free_port)"; done
"$bin" region init us --bucket "$(bucket_of us)" --address "127.0.0.1:${link[us]}" >/dev/null 2>&1
start_region us
text="$("$bin" region invite eu --bucket "$(bucket_of us)" 2>/dev/null | grep -oE '[A-Za-z0-9_.:/+=-]{60,}' | tail -n 1)"
"$bin" region join "$text" --bucket "$(bucket_of eu)" --address "127.0.0.1:${link[eu]}" >/dev/null 2>&1
start_region eu

ask us -c "create table people (region text, id int, mail text not null, primary key (region, id), unique (region, mail))" \
    -c "create index on people (region, id desc)" \
    -c "alter table people set (telesto.regions = 'by row (region): eu = eu; us = us')"
wait_for 60 own eu -c "select count(*) from people where region = 'eu'" || die "the table does not come to eu"
ask us -c "insert into people select 'us', n, '$US-' || n from generate_series(1, 500) n"
ask eu -c "insert into people select 'eu', n, '$EU-' || n from generate_series(1, 500) n" \
    -c "update people set mail = mail || '-again' where region = 'eu' and id % 5 = 0" -c "delete from people where region = 'eu' and id > 490"
is "$(ask us -c "select count(*) from people where region = 'eu'")" 490 "eu's rows as us reads them"
is "$(ask eu -c "select mail from people where region = 'us' and id = 7")" "$US-7" "a row of us as eu reads it"
if said="$(own us -c "select count(*) from people where region = 'eu'" 2>&1)"; then die "us has rows of eu: $said"; fi
grep -q 'not placed in region "us"' <<<"$said" || die "unclear: $said"
ok "each row is read where it is"
is "$(ask us -c "insert into people values ('eu', 2000, '$EU-from-us') returning id")" 2000 "a row of eu, added in us"
is "$(own eu -c "select mail from people where region = 'eu' and id = 2000")" "$EU-from-us" "a row of eu that us has added"
if said="$(ask us -c "insert into people values ('eu', 2000, 'again')" 2>&1)"; then die "a key was taken twice"; fi
grep -q 'duplicate key value violates unique constraint "people_pkey"' <<<"$said" || die "unclear: $said"
if said="$(ask us -c "insert into people values ('eu', 2001, '$EU-from-us')" 2>&1)"; then die "a mail was taken twice"; fi
grep -q 'people_region_mail_key' <<<"$said" || die "unclear: $said"
is "$(ask us -c "update people set mail = mail || '-changed' where region = 'eu' and id = 2000 returning mail")" "$EU-from-us-changed" "a row of eu, changed in us"
is "$(ask us -c "delete from people where region = 'eu' and mail = '$EU-from-us-changed' returning id")" 2000 "a row of eu, deleted in us"
is "$(own eu -c "select count(*) from people where region = 'eu'")" 490 "eu's rows"
ok "rows are added, changed and deleted from a region that does not have them, and keys taken once"

# Where the condition does not say where a row is, it is found wherever it is.
is "$(ask us -c "update people set mail = mail || '-found' where mail = '$EU-7' returning region, id")" "eu|7" "a row of eu, found from us"
is "$(ask eu -c "update people set mail = mail || '-found' where mail = '$US-7' returning region, id")" "us|7" "a row of us, found from eu"
is "$(ask us -c "update people set mail = '$US-7' where mail = '$US-7-found' returning region, id")" "us|7" "an own row, looked for in eu too"
is "$(ask us -c "update people set mail = '$EU-7' where region || id = 'eu7' returning mail")" "$EU-7" "a row of eu, found without an index"
if said="$(ask us -c "update people set mail = mail || '-both' where id = 7" 2>&1)"; then die "rows of two homes were changed: $said"; fi
grep -q 'writes in two regions' <<<"$said" || die "unclear: $said"
is "$(ask us -c "select count(*) from people where region = 'us' and mail like '%-both'")" 0 "rows of two homes"
is "$(ask us -c begin -c "select mail from people where region = 'eu' and id = 8 for update" -c "update people set mail = mail || '' where region = 'eu' and id = 8" -c commit)" "$EU-8" "a row of eu, locked from us"
ok "a condition that does not say where rows are finds them, and rows elsewhere are locked"

sleep 4
holds us "$US" && holds eu "$EU" || die "the search finds nothing"
! holds us "$EU" || die "a row of eu is in us: $(grep -rlaF "$EU" "$WORK/us")"
! holds eu "$US" || die "a row of us is in eu: $(grep -rlaF "$US" "$WORK/eu")"
ok "no file of a region holds a row that is not placed there"

kill -9 "${pids[eu]}"; wait "${pids[eu]}" 2>/dev/null || true
if said="$(ask us -v VERBOSITY=verbose -c "delete from people where mail = '$US-9'" 2>&1)"; then die "eu is away and may have the row: $said"; fi
grep -q 08006 <<<"$said" || die "unclear: $said"
is "$(own us -c "select count(*) from people where region = 'us' and mail = '$US-9'")" 1 "a row that was looked for while eu was away"
start_region eu
is "$(own eu -c "select count(*), count(distinct mail) from people where region = 'eu'")" "490|490" "after kill -9"
wait_for 60 gives 490 ask us -c "select count(*) from people where region = 'eu'" || die "us does not reach eu again"
ok "after kill -9 everything is there"

ask us -c "alter table people set (telesto.regions = 'by row (region): eu = eu, us; us = us')"
wait_for 60 gives 490 own us -c "select count(*) from people where region = 'eu'" || die "eu's rows do not come to us"
is "$(own us -c "select mail from people where region = 'eu' and mail = '$EU-10-again'")" "$EU-10-again" "by an index"
ask us -c "insert into people values ('eu', 1000, '$EU-forwarded')"
is "$(own eu -c "select mail from people where region = 'eu' and id = 1000")" "$EU-forwarded" "a row that us wrote in eu"
ok "a region that gets rows has them, and writes them at their home"

url="postgres://telesto@127.0.0.1:${sql[us]}/telesto?sslmode=disable"
said="$("$bin" dump --url "$url" --file "$WORK/plain.sql" 2>&1)"
grep -q 'telesto dump --placement' <<<"$said" || die "the dump does not say what is left out: $said"
! grep -q '^ALTER TABLE .*telesto\.' "$WORK/plain.sql" || die "the dump holds placement that was not asked for"
"$bin" dump --placement --url "$url" --file "$WORK/placed.sql" 2>/dev/null
grep -qxF "ALTER TABLE public.people SET (telesto.regions = 'by row (region): eu = eu, us; us = us');" "$WORK/placed.sql" || die "no placement: $(tail -n 5 "$WORK/placed.sql")"
ask us -c "drop table people"
"$bin" restore "$WORK/placed.sql" --url "$url" >"$WORK/restored" 2>&1 || die "not restored: $(cat "$WORK/restored")"
wait_for 60 gives 491 own eu -c "select count(*) from people where region = 'eu'" || die "restored rows do not come to eu"
wait_for 60 gives 491 own us -c "select count(*) from people where region = 'eu'" || die "restored rows are not in us"
ok "a dump with placement is restored as it was placed"

ask us -c "alter table people set (telesto.regions = 'by row (region): eu = eu; us = us')"
here() { PGOPTIONS='-c telesto.local_rows=on' ask us -c "select count(*) from people"; }
wait_for 60 gives 500 here || die "us: $(here) rows"
is "$(ask us -c "select count(*) from people where region = 'eu'")" 491 "eu's rows, read from us"
"$bin" verify --regions --bucket "$(bucket_of us)" >"$WORK/verified" 2>&1 || die "replicas differ: $(cat "$WORK/verified")"
ok "and has them no more when they are taken from it"
for name in us eu; do kill "${pids[$name]}"; wait "${pids[$name]}" || die "region $name did not stop in order: $(tail -n 5 "$WORK/$name.log")"; done
pids=()
