#!/usr/bin/env bash
# Backups with real processes: made while clients write, with the log on disks and in the bucket, with and without encryption; restored as of a
# moment that the database itself named, and as of the newest commit; cut off, damaged, and of another database.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_debian psql postgresql-client
need_debian faketime faketime
bin="${TELESTO_BIN:-$CARGO_TARGET_DIR/debug/telesto}"
[ -n "${TELESTO_BIN:-}" ] || cargo build -q -p telesto

url() { echo "postgres://telesto@127.0.0.1:$PORT/telesto?sslmode=disable"; }
ask() { psql -X -A -t -q -v ON_ERROR_STOP=1 -d "$(url)" "$@"; }
ok() { echo "ok $1"; }
kill_node() { kill -9 "$NODE"; wait "$NODE" 2>/dev/null || true; NODE=""; }
stop_node() { kill "$NODE"; wait "$NODE" || die "the stop failed"; NODE=""; }
backup() { "$bin" backup "$@" --backups "$repository" ${key[@]+"${key[@]}"}; }
# refused PATTERN COMMAND...: the command fails, and says why.
refused() {
    local pattern="$1" said
    shift
    if said="$("$@" 2>&1)"; then die "it was not refused: $* ($said)"; fi
    grep -qE "$pattern" <<<"$said" || die "refused with other words than /$pattern/: $said"
}
# on_place URL FOLDER: another node, on a restored database.
on_place() {
    BUCKET="$1"
    rm -rf "$WORK/node"
    start_node --checkpoint-interval 1s ${options[@]+"${options[@]}"}
}

# write: rows one after the other, each with the sum of all before it, until the file `stop` is there; acknowledged ones are printed.
write() {
    while [ ! -e "$WORK/stop" ]; do
        ask -c "insert into ledger (amount, before) select 1 + random() * 9, coalesce(sum(amount), 0) from ledger returning id" || true
    done >>"$WORK/acknowledged"
}
# consistent: every row follows the one before it, and the table agrees with its indexes.
consistent() {
    [ "$(ask -c "select count(*) from (select before, coalesce(sum(amount) over (order by id rows between unbounded preceding and 1 preceding), 0) as should from ledger) s where before <> should")" = 0 ] ||
        die "the restored ledger is no state that the database was in"
    ask -c "select telesto_check_table('ledger'), telesto_check_table('large')" >/dev/null || die "a table and its indexes differ"
}

for mode in clear encrypted; do
    rm -rf "$WORK/node" "$WORK/bucket" "$WORK/stop" "$WORK/acknowledged"
    BUCKET="file://$WORK/bucket" source="file://$WORK/bucket" repository="file://$WORK/backups-$mode"
    options=() key=()
    log=quorum
    if [ "$mode" = encrypted ]; then
        "$bin" keys create "$WORK/telesto.keys" >/dev/null
        key=(--encryption-key-file "$WORK/telesto.keys")
        options=("${key[@]}")
        log=bucket
    fi
    start_node --checkpoint-interval 1s --log "$log" ${options[@]+"${options[@]}"}
    ask -c "create table ledger (id serial primary key, amount int not null, before bigint not null)" \
        -c "create index on ledger (amount)" -c "create table large (id int primary key, pad text)"
    backup create --bucket "$source" >/dev/null
    write &
    writer=$!
    for round in 1 2; do
        # Large enough for a transaction of several objects of its own.
        ask -c "insert into large select $round * 1000000 + n, repeat(md5(n::text), 20) from generate_series(1, 12000) n"
        sleep 2
        backup create --bucket "$source" >/dev/null
    done
    # The moment before a mistake: what was committed by then, and when that is by the database's clock.
    read -r moment rows < <(ask -F ' ' -c "select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), count(*) from ledger")
    sleep 0.5
    ask -c "delete from large where id < 1500000"
    sleep 2.5
    backup create --bucket "$source" >/dev/null
    touch "$WORK/stop"
    wait "$writer"
    # What is shipped by now: the log on disks goes to the bucket within a second.
    sleep 2.5
    whole="$(ask -c "select count(*), sum(amount), max(id) from ledger" -c "select count(*), sum(id) from large")"
    made="$(backup create --bucket "$source")"
    grep -qE "^backup 5: " <<<"$made" || die "a backup was not counted: $made"
    backup verify >/dev/null || die "the backups are not whole"
    [ "$(backup list --json | python3 -c 'import json, sys; print(len(json.load(sys.stdin)))')" = 5 ] || die "the list is not right"
    ok "five backups of a database in use ($mode, log in $log)"
    kill_node

    backup restore --into "file://$WORK/newest" >/dev/null
    refused "is not empty" backup restore --into "file://$WORK/newest"
    on_place "file://$WORK/newest"
    [ "$(ask -c "select count(*), sum(amount), max(id) from ledger" -c "select count(*), sum(id) from large")" = "$whole" ] || die "the newest backup is not the database"
    for id in $(cat "$WORK/acknowledged"); do echo "$id"; done | sort -n | tail -1 >"$WORK/last"
    [ "$(ask -c "select max(id) from ledger")" -ge "$(cat "$WORK/last")" ] || die "an acknowledged row is missing"
    consistent
    ask -c "insert into ledger (amount, before) select 5, sum(amount) from ledger"
    stop_node
    start_node --checkpoint-interval 1s ${options[@]+"${options[@]}"}
    consistent
    stop_node
    ok "the newest backup is a database ($mode)"

    backup restore --at "$moment" --into "file://$WORK/moment" >/dev/null
    on_place "file://$WORK/moment"
    # The writer may have been answered between the two looks of the question above, never the other way round.
    found="$(ask -c "select count(*) from ledger")"
    [ "$found" -ge "$rows" ] && [ "$found" -le "$((rows + 1))" ] || die "as of $moment there are $found rows, not $rows"
    [ "$(ask -c "select count(*) from large")" = 24000 ] || die "what was deleted after the moment is missing"
    consistent
    # It goes on, through folds and compactions, and is backed up to another place.
    for _ in 1 2 3 4 5 6 7 8; do
        ask -c "update large set pad = pad || 'x' where id % 10 = 0" -c "insert into ledger (amount, before) select 5, sum(amount) from ledger"
        sleep 1.2
    done
    consistent
    refused "backups of another database, or of another course" backup create --bucket "file://$WORK/moment"
    "$bin" backup create --bucket "file://$WORK/moment" --backups "file://$WORK/others-$mode" ${key[@]+"${key[@]}"} >/dev/null
    stop_node
    # What was made of a restored database's backup is that database, too: its log has a stretch that ended with the cut.
    "$bin" backup restore --backups "file://$WORK/others-$mode" --into "file://$WORK/again" ${key[@]+"${key[@]}"} >/dev/null
    "$bin" backup verify --backups "file://$WORK/others-$mode" ${key[@]+"${key[@]}"} >/dev/null || die "the backup of a restored database is not whole"
    # Nobody serves the copies for the database.
    refused "is a copy of" timeout 60 "$bin" start --bucket "$repository/objects" --data-dir "$WORK/copies-node" --listen 127.0.0.1:0 --http none ${options[@]+"${options[@]}"}
    ok "as of the moment before a mistake ($mode)"

    refused "it is later than what the newest backup is sure to hold" backup restore --at 2999-01-01T00:00:00Z --into "file://$WORK/never"
    refused "before what the oldest backup holds" backup restore --at 2001-01-01T00:00:00Z --into "file://$WORK/never"
    refused "are not apart" backup create --bucket "$repository/objects"
    refused "are not apart" backup restore --into "$repository"
    refused "there is no backup 77" backup restore --number 77 --into "file://$WORK/never"
    refused "there are no backups" "$bin" backup restore --backups "file://$WORK/nothing" --into "file://$WORK/never"
    [ "$mode" = clear ] || refused "is encrypted" "$bin" backup restore --backups "$repository" --into "file://$WORK/never"

    # Cut off before it was whole: nobody can open it, or make a database in its place; the same command goes on.
    if (ulimit -f 8; backup restore --into "file://$WORK/half") >/dev/null 2>&1; then die "it was not cut off"; fi
    [ -s "$WORK/half/restoring" ] || die "nothing says that a restoring was cut off"
    refused "missing although version" "$bin" start --bucket "file://$WORK/half" --data-dir "$WORK/half-node" --listen 127.0.0.1:0 --http none "${options[@]+"${options[@]}"}"
    backup restore --into "file://$WORK/half" >/dev/null
    on_place "file://$WORK/half"
    [ "$(ask -c "select count(*), sum(amount), max(id) from ledger" -c "select count(*), sum(id) from large")" = "$whole" ] || die "what went on is not the database"
    stop_node
    ok "a restoring that was cut off goes on ($mode)"

    # A backup that is killed leaves nothing that counts.
    for after in 0.05 0.1 0.2; do
        "$bin" backup create --bucket "$source" --backups "file://$WORK/killed-$mode" ${key[@]+"${key[@]}"} >/dev/null 2>&1 &
        killed=$!
        sleep "$after"
        kill -9 "$killed" 2>/dev/null || true
        wait "$killed" 2>/dev/null || true
    done
    "$bin" backup create --bucket "$source" --backups "file://$WORK/killed-$mode" ${key[@]+"${key[@]}"} >/dev/null
    "$bin" backup verify --backups "file://$WORK/killed-$mode" ${key[@]+"${key[@]}"} >/dev/null || die "a backup after a killed one is not whole"

    backup prune --keep 2 >/dev/null
    [ "$(backup list --json | python3 -c 'import json, sys; print([b["number"] for b in json.load(sys.stdin)])')" = "[4, 5]" ] || die "the wrong backups were removed"
    # Three days later by the clock of who prunes: an object of a folder is as young as its name, whatever else it says of itself.
    NO_FAKE_STAT=1 FAKETIME='+3d' LD_PRELOAD="$(dpkg -L libfaketime | grep -m 1 'libfaketimeMT\.so')" backup prune --keep 1 >"$WORK/pruned.txt"
    grep -qE "^1 backups removed, and [1-9]" "$WORK/pruned.txt" || die "nothing was pruned: $(cat "$WORK/pruned.txt")"
    backup verify >/dev/null || die "pruning took something that is needed"
    backup restore --into "file://$WORK/pruned" >/dev/null
    on_place "file://$WORK/pruned"
    [ "$(ask -c "select count(*), sum(amount), max(id) from ledger" -c "select count(*), sum(id) from large")" = "$whole" ] || die "what pruning left is not the database"
    stop_node

    # Damage is found, and nothing of it is restored.
    table="$(find "$WORK/backups-$mode/objects/shards/0/checkpoint/compacted" -type f -size +100k | head -1)"
    printf 'x' | dd of="$table" bs=1 seek=5000 conv=notrunc status=none
    refused "$(basename "$table").*damaged" backup verify
    refused "$(basename "$table").*damaged" backup restore --into "file://$WORK/damaged"
    rm "$(find "$WORK/backups-$mode/objects/shards/0/checkpoint/manifest" -type f | sort | tail -1)"
    refused "is missing" backup verify
    ok "damage is found ($mode)"
    rm -rf "$WORK"/{again,copies-node,newest,moment,half,half-node,pruned,damaged,never}
done
