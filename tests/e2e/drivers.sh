#!/usr/bin/env bash
# Stock drivers, ORMs and migration tools, at pinned versions, against live nodes: one on a folder, one on an S3 server.
#   tests/e2e/drivers.sh                  every suite on both
#   tests/e2e/drivers.sh SUITE...         only these: psql python/psycopg … node/node_postgres node/knex … go/pgx … java/pgjdbc … rust/sqlx …
#   TARGETS=postgres tests/e2e/drivers.sh the suites themselves, on PostgreSQL 15 (also: folder, s3)
# Exit code 77: a toolchain cannot be had here; the last line says which.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh

PACKAGES="$TELESTO_CACHE/drivers"
SUITES=(psql python/psycopg python/orms python/sqlalchemy_suite node/node_postgres node/knex node/drizzle node/drizzle_kit node/typeorm go/pgx go/gorm
    java/pgjdbc java/metadata java/hibernate java/liquibase java/flyway rust/tokio-postgres rust/sqlx)
# psql and the suites in Python have scripts of their own beside this one, which start their own nodes; of these only SQLAlchemy's
# runs on PostgreSQL too.
OWN_NODES=" psql python/psycopg python/orms python/sqlalchemy_suite "
# Suites whose subject does not pass yet; the reason is in docs/sql/drivers.md. They run, and are expected to fail:
# one that passes must leave this list. All pass.
EXPECTED_TO_FAIL=()
[ $# -gt 0 ] && SUITES=("$@")
wants() { [[ " ${SUITES[*]}" == *" $1/"* ]]; }
unavailable() { echo "$*"; exit 77; }

# same_as FOLDER NAME...: whether what FOLDER was installed from is what the clone has.
same_as() {
    local folder="$1" name; shift
    for name in "$@"; do cmp -s "$name" "$folder/.installed-$(basename "$name")" || return 1; done
}
installed_from() {
    local folder="$1" name; shift
    for name in "$@"; do cp "$name" "$folder/.installed-$(basename "$name")"; done
}

prepare_node() {
    local folder="$PACKAGES/node" from=tests/drivers/node
    need_debian node nodejs npm
    mkdir -p "$folder"
    cp $from/*.mjs $from/*.expected $from/package.json $from/package-lock.json "$folder/"
    same_as "$folder" $from/package-lock.json && return 0
    say "installing what $from/package-lock.json lists"
    (cd "$folder" && npm ci --no-audit --no-fund --loglevel=error) || unavailable "npm ci failed; is the network up?"
    installed_from "$folder" $from/package-lock.json
}
prepare_go() {
    need_go 25
    mkdir -p "$PACKAGES/go"
    (cd tests/drivers/go && GOTOOLCHAIN=local GOFLAGS=-mod=readonly go build -buildvcs=false -o "$PACKAGES/go/drivers" .) \
        || die "go build failed; is the network up?"
}
prepare_java() {
    local folder="$PACKAGES/java" from=tests/drivers/java
    need_debian javac default-jdk-headless
    need_debian mvn maven
    mkdir -p "$folder"
    if ! same_as "$folder" $from/pom.xml; then
        say "fetching what $from/pom.xml lists"
        rm -rf "$folder/lib"
        mvn -B -q -f $from/pom.xml -Dmaven.repo.local="$TELESTO_CACHE/m2" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
            -DoutputDirectory="$folder/lib" || unavailable "maven could not fetch the jars; is the network up?"
        installed_from "$folder" $from/pom.xml
    fi
    rm -rf "$folder/classes"
    javac -nowarn -cp "$folder/lib/*" -d "$folder/classes" $from/*.java || die "javac failed"
}
prepare_rust() {
    (cd tests/drivers/rust && CARGO_TARGET_DIR="$PACKAGES/rust-target" cargo build -q --locked) || die "cargo build failed; is the network up?"
}

# run SUITE URL: URL without parameters; every client gets what it calls them.
run() {
    local language="${1%%/*}" suite="${1#*/}" url="$2"
    case "$language" in
    node) (cd "$PACKAGES/node" && node "$suite.mjs" "$url?sslmode=disable") ;;
    go) "$PACKAGES/go/drivers" "$suite" "$url?sslmode=disable" ;;
    java)
        local jdbc="${url/postgres:\/\//}"
        jdbc="jdbc:postgresql://${jdbc#*@}?user=${jdbc%%@*}&sslmode=disable"
        local more=()
        [ "$suite" = metadata ] && more=("$REFERENCE")
        java -XX:TieredStopAtLevel=1 -cp "$PACKAGES/java/lib/*:$PACKAGES/java/classes" Check "$suite" "$jdbc" "${more[@]}"
        ;;
    rust) "$PACKAGES/rust-target/debug/telesto-drivers" "$suite" "$url?sslmode=disable" ;;
    *) die "no suite $1; there are ${SUITES[*]}" ;;
    esac
}

passed=0 failed=0
# all URL WHERE TARGET: every suite against one server.
all() {
    local suite began log="$WORK/suite.log" status
    for suite in "${SUITES[@]}"; do
        began=$SECONDS status=0
        if [[ "$OWN_NODES" == *" $suite "* ]]; then
            if [ "$3" = postgres ] && [ "$suite" != python/sqlalchemy_suite ]; then
                echo "none   $suite on $2: its script knows nodes only"
                continue
            fi
            TARGETS="$3" "tests/e2e/${suite#*/}.sh" >"$log" 2>&1 || status=$?
        else
            run "$suite" "$1" >"$log" 2>&1 || status=$?
        fi
        if [[ "$2" != PostgreSQL* && " ${EXPECTED_TO_FAIL[*]} " == *" $suite "* ]]; then
            if [ "$status" = 0 ]; then
                failed=$((failed + 1))
                echo "FAILED $suite on $2: it passes now; take it out of EXPECTED_TO_FAIL and of docs/sql/drivers.md"
            else
                echo "known  $suite on $2 ($((SECONDS - began)) s): $(grep -av '^ok' "$log" | head -n 1 | cut -c1-200)"
            fi
        elif [ "$status" = 0 ]; then
            passed=$((passed + 1))
            # SQLAlchemy's suite tells how many passed in its last line alone.
            checks="$(sed -n 's/^test result: .* \([0-9]*\) passed; 0 failed.*/\1/p' "$log" | tail -n 1)"
            echo "ok     $suite on $2 ($((SECONDS - began)) s, ${checks:-$(grep -ac '^ok ' "$log")} checks)"
        else
            failed=$((failed + 1))
            echo "FAILED $suite on $2:"
            grep -av '^ok' "$log" | head -n 30 | cut -c1-1000
        fi
    done
}

for language in node go java rust; do
    if wants "$language"; then "prepare_$language"; fi
done
TARGETS="${TARGETS:-folder s3}"
REFERENCE=""
if [[ " ${SUITES[*]} " == *" java/metadata "* || "$TARGETS" == *postgres* ]]; then
    # As root, the server runs as a user of its own, who must get to its folder.
    chmod 711 "$WORK"
    reference_port="$(free_port)"
    reference_url="$(tests/servers/postgres.sh start "$reference_port" "$WORK/postgres" | tail -n 1)"
    stop_reference() { tests/servers/postgres.sh stop "$reference_port" "$WORK/postgres"; }
    trap 'stop_reference; cleanup' EXIT
    REFERENCE="jdbc:postgresql://127.0.0.1:$reference_port/postgres?user=postgres&sslmode=disable"
fi
for target in $TARGETS; do
    say "$target"
    case "$target" in
    folder)
        start_node
        all "postgres://telesto@127.0.0.1:$PORT/telesto" "a folder" folder
        stop_node
        ;;
    s3)
        start_s3_node
        all "postgres://telesto@127.0.0.1:$PORT/telesto" "an S3 bucket" s3
        stop_node
        stop_s3
        ;;
    postgres) all "${reference_url%%\?*}" "PostgreSQL 15" postgres ;;
    *) die "no target $target; there are folder, s3 and postgres" ;;
    esac
done
echo "test result: drivers: $passed passed; $failed failed"
[ "$failed" = 0 ]
