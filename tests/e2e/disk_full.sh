#!/usr/bin/env bash
# The disk of the local log is full (a small tmpfs in a mount namespace of its own): a commit ends in an error that names
# the file, reads go on, nothing that was acknowledged is lost when the node is killed then, and with space again it
# starts and writes. Exit code 77: no tmpfs may be mounted here.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ -z "${TELESTO_OWN_MOUNTS:-}" ]; then
    for how in -m -rm; do
        if unshare "$how" mount -t tmpfs none /mnt 2>/dev/null; then
            TELESTO_OWN_MOUNTS=1 exec unshare "$how" "$0"
        fi
    done
    echo "no tmpfs may be mounted here; the test of a full disk was not run" >&2
    exit 77
fi
. tests/e2e/node.sh
need_debian psql postgresql-client
ask() { psql -X -A -t -q -v ON_ERROR_STOP=1 -d "postgres://telesto@127.0.0.1:$PORT/telesto?sslmode=disable" "$@"; }
mkdir "$WORK/node"
mount -t tmpfs -o size=6m none "$WORK/node"
start_node --log quorum
ask -c "create table t (id int primary key, v text)"

acknowledged=0 said=""
while [ "$acknowledged" -lt 2000 ]; do
    row="select $((acknowledged + 1)), string_agg(md5(random()::text), '') from generate_series(1, 2000)"
    if ! said="$(ask -c "insert into t $row" 2>&1)"; then break; fi
    acknowledged=$((acknowledged + 1))
done
[ "$acknowledged" -gt 20 ] || die "only $acknowledged rows before the first error: $said"
grep -q 'No space left on device' <<<"$said" || die "not the error of a full disk after $acknowledged rows: $said"
grep -qF "$WORK/node/" <<<"$said" || die "the file is not named: $said"
[ "$(ask -c "select count(*) from t where id <= $acknowledged")" = "$acknowledged" ] || die "reads do not go on"
echo "ok full: $acknowledged rows acknowledged, then: $(head -n 1 <<<"$said")"

kill -9 "$NODE"
wait "$NODE" 2>/dev/null || :
NODE=""
mount -o remount,size=200m "$WORK/node"
start_node --log quorum
found="$(ask -c "select count(*) filter (where id <= $acknowledged), count(*) filter (where id > $acknowledged) from t")"
# The row whose commit failed may be there: its error says that this is not known.
case "$found" in
    "$acknowledged|0" | "$acknowledged|1") ;;
    *) die "$acknowledged rows were acknowledged; there are (of those|others): $found" ;;
esac
ask -c "insert into t values (1000000, 'again')"
echo "ok after kill -9 and with space again: $found"
stop_node
umount "$WORK/node"
