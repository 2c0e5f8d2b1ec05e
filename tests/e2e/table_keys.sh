#!/usr/bin/env bash
# Keys of tables with real processes, in a database without encryption of its own: markers in a keyed table's values are in no file, log,
# checkpoint or spilled data; a node without the key; COPY, dump and restore; a drop that is killed, and finished; rotation.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_debian psql postgresql-client
bin="${TELESTO_BIN:-$CARGO_TARGET_DIR/debug/telesto}"
[ -n "${TELESTO_BIN:-}" ] || cargo build -q -p telesto
MARK=Xq7Zmarker
OPEN=Yw8Vmarker
mkdir -p "$WORK/keys"
keys="$WORK/keys/all" without="$WORK/keys/without"
"$bin" keys create "$keys" --name group_a --for-tables >/dev/null
"$bin" keys create "$keys" --name group_b --for-tables >/dev/null
{ grep -v '^group_a ' "$keys"; } >"$without"
chmod 600 "$without"

ask() { psql -X -A -t -q -v ON_ERROR_STOP=1 -d "postgres://telesto@127.0.0.1:$PORT/telesto?sslmode=disable" "$@"; }
ok() { echo "ok $1"; }
kill_node() { kill -9 "$NODE"; wait "$NODE" 2>/dev/null || true; NODE=""; }
files_with() { local mark="$1"; shift; grep -rlaF "$mark" "$@" 2>/dev/null || true; }
# says NAME WORDS COMMAND...: it fails with both in what it says.
says() {
    local name="$1" words="$2"; shift 2
    if out="$("$@" 2>&1)"; then return 1; fi
    grep -q "$name" <<<"$out" && grep -q "$words" <<<"$out"
}
refused() { out=""; says "$@" || die "not refused as it should be: $*: $out"; }

start_node --checkpoint-interval 1s --encryption-key-file "$keys"
noticed="$(ask -c "create table secret (id int primary key, mail text, note text) with (telesto.key = 'group_a'); create index on secret (mail)" 2>&1)"
grep -q "does not hide.*id" <<<"$noticed" && grep -q "does not hide.*mail" <<<"$noticed" || die "no notice of key columns: $noticed"
ask -c "create table public_one (id int primary key, note text); create table other (id int primary key, note text) with (telesto.key = 'group_b')" \
    -c "insert into secret select n, 'm' || n, '$MARK-' || n from generate_series(1, 2000) n" \
    -c "update secret set note = note || '-again' where id % 7 = 0" \
    -c "insert into public_one select n, '$OPEN-' || n from generate_series(1, 2000) n" \
    -c "insert into other values (1, 'kept')" 2>/dev/null
mkfifo "$WORK/hold"
ask >"$WORK/held" <"$WORK/hold" &
HOLDER=$!
exec 9>"$WORK/hold"
echo "begin; declare c scroll cursor for select '$OPEN', note || repeat(a.id::text, 20) from secret a, generate_series(1, 30) n; move last in c; \echo held" >&9
wait_for 120 grep -qx held "$WORK/held" || die "the cursor is not filled"
any=1
for file in /proc/"$NODE"/fd/*; do
    case "$(readlink "$file" || true)" in
    "$WORK"/node/temp/*deleted*) any=0; ! grep -qaF -e "$MARK" -e "$OPEN" "$file" || die "a marker is in spilled rows" ;;
    esac
done
[ "$any" = 0 ] || die "nothing was spilled to the node's folder"
[ -n "$(files_with "$OPEN" "$WORK/node")" ] || die "no marker of the table in clear is in the local log: the search finds nothing"
[ -z "$(files_with "$MARK" "$WORK/node" "$WORK/bucket")" ] || die "a marker is in clear while it runs"
sleep 4
grep -qaF "$OPEN" -r "$WORK/bucket" --include='*.sst' || die "no marker of the table in clear is in the checkpoint: the search finds nothing"
[ -z "$(files_with "$MARK" "$WORK/node" "$WORK/bucket")" ] || die "a marker is in clear after folds"
exec 9>&-; wait "$HOLDER" || true
ok "markers, without encryption of the database"

ask -c "copy (select note from secret where id = 1) to stdout" | grep -q "$MARK" || die "COPY"
"$bin" dump --url "postgres://telesto@127.0.0.1:$PORT/telesto" --file "$WORK/all.sql" || die "dump"
grep -q "$MARK" "$WORK/all.sql" || die "a dump is in clear"
grep -q "SET (telesto.key = 'group_a')" "$WORK/all.sql" || die "a dump names the keys"
kill_node

start_node --encryption-key-file "$without"
[ "$(ask -c "select count(*) from public_one where note like '$OPEN%'")" = 2000 ] || die "the other table"
[ "$(ask -c "select note from other")" = kept ] || die "the other key"
for sql in "select note from secret where id = 1" "select count(*) from secret where note like '%again'" "copy secret to stdout" \
    "update secret set note = 'x' where id = 1" "insert into secret values (0, 'x', 'x')" "create index concurrently on secret (note)"; do
    refused group_a "which cannot be used here" ask -v VERBOSITY=verbose -c "$sql"
done
echo "9999	x	x" | refused group_a "which cannot be used here" ask -c "copy secret from stdin"
refused group_a "which cannot be used here" "$bin" dump --url "postgres://telesto@127.0.0.1:$PORT/telesto" --file "$WORK/none.sql"
ask -c "insert into other values (2, 'more')"
kill_node
ok "a node without the key"

start_node --encryption-key-file "$keys"
[ "$("$bin" keys rotate --table-key group_a --bucket "$BUCKET" --encryption-key-file "$keys" | grep -c 'epoch 2')" = 1 ] || die "rotation"
ask -c "alter table secret set (telesto.key = 'group_a'); insert into secret values (3000, 'x', '$MARK')"
kill_node
start_node --encryption-key-file "$keys"
[ "$(ask -c "select count(*) from secret where note like '$MARK%'")" = 2001 ] || die "rows after rotation and kill -9"
"$bin" keys show --bucket "$BUCKET" --encryption-key-file "$keys" | grep -q "group_a.*2.*in the key file" || die "keys show"
ok "rotation and kill -9"

refused "for-ever" "never be read again" "$bin" keys drop group_a --bucket "$BUCKET"
# Killed at any moment: it has not begun, or it counts and the next finishes it.
cp -r "$WORK/bucket/keyring" "$WORK/copy"
for pause in 0 0.03 0.06 0.09 0.12 0.15 0.2 0.3; do
    "$bin" keys drop group_a --for-ever --bucket "$BUCKET" >/dev/null 2>&1 & dropping=$!
    sleep "$pause"
    kill -9 "$dropping" 2>/dev/null || true
    wait "$dropping" 2>/dev/null || true
    left="$(find "$WORK/bucket/keyring/tables/group_a" -name '0*' | wc -l)"
    [ -e "$WORK/bucket/keyring/tables/group_a/dropped" ] || [ "$left" = 2 ] || die "a key was deleted before the tombstone"
done
"$bin" keys drop group_a --for-ever --bucket "$BUCKET" >/dev/null || die "the drop is not finished"
[ -z "$(find "$WORK/bucket/keyring/tables/group_a" -name '0*')" ] || die "a wrapped key is left"
wait_for 150 says group_a "it was dropped" ask -c "select note from secret where id = 1" || die "a running node goes on with a dropped key"
[ "$(ask -c "select count(*) from other")" = 2 ] || die "the other key"
kill_node
cp "$WORK/copy/tables/group_a"/0* "$WORK/bucket/keyring/tables/group_a/"
start_node --encryption-key-file "$keys"
refused group_a "it was dropped" ask -c "select note from secret where id = 1"
"$bin" keys show --bucket "$BUCKET" --encryption-key-file "$keys" | grep -q "group_a.*dropped" || die "keys show"
refused group_a "dropped" ask -c "create table t (id int primary key) with (telesto.key = 'group_a')"
ask -c "drop table secret"
[ "$(ask -c "select count(*) from public_one")" = 2000 ] || die "the table in clear"
stop_node
ok "drop, killed and finished, and a copy of the keys put back"

# Into another database, encrypted as a whole, with keys of its own.
rm -rf "$WORK/node" "$WORK/bucket"
"$bin" keys create "$keys" --name ring >/dev/null
start_node --encryption-key-file "$keys"
"$bin" restore --url "postgres://telesto@127.0.0.1:$PORT/telesto" "$WORK/all.sql" >/dev/null || die "restore"
[ "$(ask -c "select count(*) from secret where note like '$MARK%'")" = 2000 ] || die "rows after the restore"
[ "$(ask -c "select reloptions from pg_class where relname = 'secret'")" = "{telesto.key=group_a}" ] || die "the key after the restore"
[ -z "$(files_with "$MARK" "$WORK/node" "$WORK/bucket")" ] || die "a marker is in clear after the restore"
stop_node
ok "dump and restore, within encryption of the database"

# Regions cannot have such tables yet: who finds out at the start is told how to go on.
link="127.0.0.1:$(free_port)"
"$bin" region init us --bucket "$BUCKET" --address "$link" --encryption-key-file "$keys" >/dev/null 2>&1 || die "region init"
refused '"other", "secret"\|"secret", "other"' "once without --region" timeout 60 "$bin" start --bucket "$BUCKET" --data-dir "$WORK/node" \
    --listen 127.0.0.1:0 --http none --region "$link" --encryption-key-file "$keys"
start_node --encryption-key-file "$keys"
ask -c "alter table secret reset (telesto.key)" -c "alter table other reset (telesto.key)"
stop_node
start_node --encryption-key-file "$keys" --region "$link"
[ "$(ask -c "select count(*) from secret where note like '$MARK%'")" = 2000 ] || die "rows in a region"
stop_node
ok "a database with keys becomes a region when they are gone"
echo "table keys: all well"
