#!/usr/bin/env bash
# A database whose key stays in a key management service: moto, which speaks AWS KMS' protocol and checks the context that things are wrapped
# for (what KMS refuses by its own rules, as a disabled key, moto does not: unit tests have these). Start, a service that hangs, kill -9, rotation from a key of the file to one of the service and back, a key of tables.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_debian psql postgresql-client
need_wheel '"$PYTHON" -c "import moto.server, boto3"' 'moto[kms,server]==5.1.4'
bin="${TELESTO_BIN:-$CARGO_TARGET_DIR/debug/telesto}"
[ -n "${TELESTO_BIN:-}" ] || cargo build -q -p telesto
keys="$WORK/telesto.keys"

ask() { psql -X -A -t -q -v ON_ERROR_STOP=1 -d "postgres://telesto@127.0.0.1:$PORT/telesto?sslmode=disable" "$@"; }
ok() { echo "ok $1"; }
kill_node() { kill -9 "$NODE"; wait "$NODE" 2>/dev/null || true; NODE=""; }
stop_node() { kill "$NODE"; wait "$NODE" || die "the stop failed"; NODE=""; }
# refused WORDS COMMAND...: it fails and says the words.
refused() {
    local words="$1" out; shift
    if out="$("$@" 2>&1)"; then die "not refused: $*"; fi
    grep -q "$words" <<<"$out" || die "$* does not say $words: $out"
}

kms_port="$(free_port)"
"$PYTHON" -m moto.server -H 127.0.0.1 -p "$kms_port" >"$WORK/kms.log" 2>&1 &
KMS=$!
trap 'kill -KILL "$KMS" 2>/dev/null && wait "$KMS" 2>/dev/null || true; cleanup' EXIT
export AWS_ENDPOINT_URL_KMS="http://127.0.0.1:$kms_port" AWS_ACCESS_KEY_ID=one AWS_SECRET_ACCESS_KEY=two AWS_DEFAULT_REGION=eu-west-1
wait_for 60 curl -fsS "$AWS_ENDPOINT_URL_KMS/moto-api/" -o /dev/null || die "moto does not start: $(tail -3 "$WORK/kms.log")"
kms() { "$PYTHON" -c "import boto3; c = boto3.client('kms', endpoint_url='$AWS_ENDPOINT_URL_KMS'); $1"; }
arn="$(kms "print(c.create_key()['KeyMetadata']['Arn'])")"
group="$(kms "print(c.create_key()['KeyMetadata']['Arn'])")"

refused "is an alias" "$bin" keys create "$keys" --kms "arn:aws:kms:eu-west-1:123456789012:alias/one"
refused "NotFoundException" "$bin" keys create "$keys" --kms "${arn%/*}/00000000-0000-0000-0000-000000000000"
AWS_ENDPOINT_URL_KMS=http://127.0.0.1:1 refused "does not answer" "$bin" keys create "$keys" --kms "$arn"
[ ! -e "$keys" ] || die "a key file was made although the key cannot be used"
"$bin" keys create "$keys" --name kms-1 --kms "$arn" >/dev/null
grep -qx "kms-1 $arn" "$keys" || die "the file says: $(cat "$keys")"
[ "$(grep -vc '^#' "$keys")" = 1 ] || die "the file has more than the ARN"
ok "the file names the key and has none"

start_node --checkpoint-interval 1s --encryption-key-file "$keys"
ask -c "create table t (id int primary key, note text); insert into t select n, 'PlantedMarker' || n from generate_series(1, 1000) n"
! grep -rlaF PlantedMarker "$WORK/bucket" "$WORK/node" || die "a marker is in clear"
kill_node
start_node --checkpoint-interval 1s --encryption-key-file "$keys"
[ "$(ask -c "select count(*) from t")" = 1000 ] || die "rows are missing after kill -9"
ok "rows are encrypted, and read again after kill -9"

# What runs goes on without the service; what starts does not.
kill -STOP "$KMS"
[ "$(ask -c "select count(*) from t")" = 1000 ] || die "a running node needs the service"
stop_node
refused "does not answer.*tried 4 times" timeout 90 "$bin" start --bucket "file://$WORK/bucket" --data-dir "$WORK/node" \
    --listen 127.0.0.1:0 --http none --encryption-key-file "$keys"
kill -CONT "$KMS"
ok "a node that starts while the service hangs is refused in time, and says what to do"

# Turned over to a key of the file, and back to one of the service.
"$bin" keys create "$keys" --name own >/dev/null
"$bin" keys rotate --bucket "file://$WORK/bucket" --encryption-key-file "$keys" >/dev/null
kill -STOP "$KMS"
start_node --checkpoint-interval 1s --encryption-key-file "$keys"
[ "$(ask -c "select count(*) from t")" = 1000 ] || die "the key of the file does not open it alone"
stop_node
kill -CONT "$KMS"
{ grep -v '^kms-1 ' "$keys"; echo "kms-1 $arn"; } >"$keys.new" && chmod 600 "$keys.new" && mv "$keys.new" "$keys"
"$bin" keys rotate --wrapping-only --bucket "file://$WORK/bucket" --encryption-key-file "$keys" >/dev/null
shown="$("$bin" keys show --bucket "file://$WORK/bucket" --encryption-key-file "$keys")"
grep -q "wrapped with key kms-1" <<<"$shown" || die "it is not wrapped with the key of the service: $shown"
ok "the database goes over from a key of the service to one of the file, and back"

# What is wrapped for one object opens for no other.
newest="$(find "$WORK/bucket" -path '*keyring*' -type f | sort | tail -1)"
[ -n "$newest" ] || die "there is no key ring"
next="${newest%/*}/$(printf '%020d' $((10#$(basename "$newest") + 1)))"
cp "$newest" "$next"
refused "does not open\|damaged" "$bin" keys show --bucket "file://$WORK/bucket" --encryption-key-file "$keys"
rm "$next"
ok "a ring that was copied to another name does not open"
# The ring says so of itself. What KMS wrapped for it says so, too: by the object's name, and by no other.
cat >"$WORK/open.py" <<'EOF'
import struct, sys, boto3
url, arn, ring, name = sys.argv[1:]
bytes = open(ring, "rb").read()
at = 14 + bytes[13]
(length,) = struct.unpack(">H", bytes[at : at + 2])
wrapped = bytes[at + 2 : at + 2 + length]
kms = boto3.client("kms", endpoint_url=url)
print(len(kms.decrypt(KeyId=arn, CiphertextBlob=wrapped, EncryptionContext={"telesto-object": name})["Plaintext"]))
EOF
open_for() { "$PYTHON" "$WORK/open.py" "$AWS_ENDPOINT_URL_KMS" "$arn" "$newest" "$1"; }
[ "$(open_for "keyring/$(basename "$newest")")" = 32 ] || die "KMS does not open what it wrapped for the ring"
refused "InvalidCiphertextException" open_for "keyring/$(basename "$next")"
ok "what KMS wrapped opens for the object that it was for alone"

# A key of tables in the service.
"$bin" keys create "$keys" --name group_a --for-tables --kms "$group" >/dev/null
start_node --checkpoint-interval 1s --encryption-key-file "$keys"
ask -c "create table secret (id int primary key, note text) with (telesto.key = 'group_a'); insert into secret values (1, 'mine')" 2>/dev/null
stop_node
start_node --checkpoint-interval 1s --encryption-key-file "$keys"
[ "$(ask -c "select note from secret")" = mine ] || die "the keyed table is not read after a restart"
stop_node
ok "a key of tables stays in the service"
echo "kms: all well"
