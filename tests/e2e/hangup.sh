#!/usr/bin/env bash
# SIGHUP to a real process, with psql: certificate, key, revocation list and access file that were exchanged hold for clients from then
# on, sessions that stand go on; files that do not fit leave all as it was, and the log tells which.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_debian psql postgresql-client
need_debian openssl openssl
[ -n "${TELESTO_BIN:-}" ] || cargo build -q -p telesto
ok() { echo "ok $1"; }
files="$WORK/tls"
mkdir -p "$files"

# made FOLDER openssl-arguments…: quietly, and what it says when it fails.
made() { (cd "$1" && shift && openssl "$@") >"$WORK/openssl.log" 2>&1 || { cat "$WORK/openssl.log" >&2; die "openssl $2"; }; }
new_key() { echo "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"; }
# authority FOLDER: a new one, with an empty list of what it revoked.
authority() {
    mkdir -p "$1"
    made "$1" req -x509 -subj /CN=authority $(new_key) -keyout ca.key -out ca.pem
    printf '[ca]\ndefault_ca=own\n[own]\ndatabase=index\ncrlnumber=number\ndefault_md=sha256\nunique_subject=no\ndefault_crl_days=2\n' >"$1/ca.cnf"
    : >"$1/index"
    echo 01 >"$1/number"
    list "$1"
}
# gives FOLDER NAME SUBJECT USAGE: a certificate of that authority.
gives() {
    made "$1" req -x509 -subj "$3" -CA ca.pem -CAkey ca.key $(new_key) -addext subjectAltName=DNS:localhost \
        -addext basicConstraints=critical,CA:FALSE -addext "extendedKeyUsage=$4" -keyout "$2.key" -out "$2.pem"
    chmod 600 "$1/$2.key"
}
ca() { made "$1" ca -config ca.cnf -keyfile ca.key -cert ca.pem "${@:2}"; }
list() { ca "$1" -gencrl -out crl.pem; }

old="$WORK/old" new="$WORK/new"
authority "$old"
authority "$new"
gives "$old" server /CN=localhost serverAuth
gives "$new" server /CN=localhost serverAuth
gives "$old" telesto /CN=telesto clientAuth
gives "$old" ada /CN=ada clientAuth
cp "$old/server.pem" "$files/server.pem"
cp "$old/server.key" "$files/server.key"
cp "$old/crl.pem" "$files/crl.pem"
rules() { printf '%s\n' "$@" >"$files/access"; }
# What asks for the node's health comes by the last line.
rules 'hostssl all all all cert' 'hostnossl all all 127.0.0.1/32 scram-sha-256'
chmod 600 "$files/server.key"
users="$WORK/users"
for user in telesto ada; do echo sesame | (umask 077; "${TELESTO_BIN:-$CARGO_TARGET_DIR/debug/telesto}" hash-password "$user" >>"$users"); done

url() { echo "host=localhost hostaddr=127.0.0.1 port=$PORT dbname=telesto user=$1 sslmode=verify-full"; }
# as USER AUTHORITY: a new session by the user's certificate, which believes that authority alone about the server; who it is.
as() {
    PGSSLCERT="$old/$1.pem" PGSSLKEY="$old/$1.key" PGSSLROOTCERT="$2/ca.pem" PGCONNECT_TIMEOUT=60 \
        psql -X -A -t -q -d "$(url "$1")" -c 'select current_user' 2>&1
}
in_as() { [ "$(as "$@")" = "$1" ] || die "$1 is not let in: $(as "$@")"; }
# refused WORDS USER AUTHORITY: no session, with these words.
refused() {
    local words="$1"; shift
    if said="$(as "$@")"; then die "$1 is let in"; fi
    grep -qi "$words" <<<"$said" || die "$1 is refused otherwise: $said"
}
count() { grep -c "$1" "$WORK/node.log" || true; }
more() { [ "$(count "$1")" -gt "$2" ]; }
# hangs_up WORDS…: SIGHUP; each of these stands once more in the log then.
hangs_up() {
    local before=() words at=0
    for words in "$@"; do before+=("$(count "$words")"); done
    kill -HUP "$NODE"
    for words in "$@"; do
        wait_for 60 more "$words" "${before[$at]}" || { tail -n 5 "$WORK/node.log" >&2; die "the log does not say: $words"; }
        at=$((at + 1))
    done
}
# stands: the session from the beginning answers.
stands() {
    local asked="$1"
    echo "select 'still $asked';" >&9
    wait_for 60 grep -qx "still $asked" "$WORK/held" || die "the session from before does not go on: $asked"
}

rules_read="the access file was read again" tls_read="the files of TLS were read again"
rules_stay="the access rules stay what they were" tls_stays="TLS stays what it was"

# What was read again is told at this level, what was not at the one that is the default.
export TELESTO_LOG_LEVEL=info
start_node --auth-file "$users" --access-file "$files/access" --tls-cert "$files/server.pem" --tls-key "$files/server.key" \
    --tls-client-ca "$old/ca.pem" --tls-client-crl "$files/crl.pem"
in_as telesto "$old"
in_as ada "$old"
refused 'verify failed' telesto "$new"
mkfifo "$WORK/hold"
PGSSLCERT="$old/telesto.pem" PGSSLKEY="$old/telesto.key" PGSSLROOTCERT="$old/ca.pem" psql -X -A -t -q -d "$(url telesto)" <"$WORK/hold" >"$WORK/held" 2>&1 &
HOLDER=$!
exec 9>"$WORK/hold"
stands 'at the beginning'
ok 'certificates let in'

ca "$old" -revoke ada.pem
list "$old"
cp "$old/crl.pem" "$files/crl.pem"
in_as ada "$old"
hangs_up "$rules_read" "$tls_read"
refused 'revoked\|alert\|closed' ada "$old"
in_as telesto "$old"
stands 'after the list'
ok 'a list of revoked certificates holds from SIGHUP on'

cp "$new/server.pem" "$files/server.pem"
hangs_up "$rules_read" "$tls_stays"
grep "$tls_stays" "$WORK/node.log" | tail -n 1 | grep -q "server\.key" || die "the log does not name the file"
in_as telesto "$old"
cp "$new/server.key" "$files/server.key"
hangs_up "$rules_read" "$tls_read"
in_as telesto "$new"
refused 'verify failed' telesto "$old"
stands 'after the certificate'
ok 'a certificate with its key holds from SIGHUP on, one without leaves all as it was'

echo garbage >"$files/crl.pem"
hangs_up "$rules_read" "$tls_stays"
grep "$tls_stays" "$WORK/node.log" | tail -n 1 | grep -q "crl\.pem" || die "the log does not name the file"
in_as telesto "$new"
refused 'revoked\|alert\|closed' ada "$new"
mv "$files/server.pem" "$files/away"
cp "$old/crl.pem" "$files/crl.pem"
hangs_up "$rules_read" "$tls_stays"
in_as telesto "$new"
mv "$files/away" "$files/server.pem"
ok 'files that are broken or gone leave all as it was'

rules 'hostssl all all all cert' 'hostssl everything'
hangs_up "$rules_stay" "$tls_read"
grep "$rules_stay" "$WORK/node.log" | tail -n 1 | grep -q "access:2" || die "the log does not name the line"
in_as telesto "$new"
rules 'hostssl all ada all cert' 'hostnossl all all 127.0.0.1/32 scram-sha-256'
hangs_up "$rules_read" "$tls_read"
refused 'access' telesto "$new"
stands 'after the rules'
ok 'rules of entrance hold from SIGHUP on, wrong ones leave those from before'

exec 9>&-
wait "$HOLDER" || die "the session from before ended badly"
stop_node
