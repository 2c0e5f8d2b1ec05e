#!/usr/bin/env bash
# Every test, in stages; ends in one line "N passed, N failed" over all of them.
#   scripts/test.sh            all stages
#   scripts/test.sh NAME...    only these
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
need_debian openssl openssl ca-certificates
need_debian python3 python3
logs="${TELESTO_TEST_LOGS:-$(mktemp -d)}"
mkdir -p "$logs"
passed=0 failed=0 skipped=0 failures=()

# stage NAME COMMAND...: runs it, counts cargo's "test result" lines (or itself as one test). Exit code 77: what it needs
# cannot be had on this machine; it says what, and that is shown and counted.
stage() {
    local name="$1"; shift
    if [ "${#only[@]}" -gt 0 ] && [[ ! " ${only[*]} " == *" $name "* ]]; then return 0; fi
    say "$name"
    local log="$logs/$name.log" began=$SECONDS status=0 p f
    "$@" >"$log" 2>&1 || status=$?
    if [ "$status" = 77 ]; then
        skipped=$((skipped + 1))
        echo "   SKIPPED: $(tail -n 1 "$log")"
        return 0
    fi
    p=$(grep -aoE '^test result: .* [0-9]+ passed' "$log" | grep -oE '[0-9]+ passed' | awk '{n+=$1} END{print n+0}')
    f=$(grep -aoE '^test result: .* [0-9]+ failed' "$log" | grep -oE '[0-9]+ failed' | awk '{n+=$1} END{print n+0}')
    if ! grep -aqE '^test result: ' "$log"; then
        if [ "$status" = 0 ]; then p=1; else f=1; fi
    elif [ "$status" != 0 ] && [ "$f" = 0 ]; then
        f=1
    fi
    passed=$((passed + p)) failed=$((failed + f))
    if [ "$status" = 0 ]; then
        tail -n 3 "$log" | sed 's/^/   /'
    else
        failures+=("$name")
        echo "   FAILED (exit $status); the whole is in $log:"
        # Which tests, and what they said; of a stage without such lines, or a build that failed, its end.
        if [ "$f" -gt 0 ] && grep -aqE '^test .* FAILED$' "$log"; then
            grep -aE '^test .* FAILED$' "$log" | sed 's/^/   /'
            grep -aE -A12 "^thread '.*panicked at" "$log" | grep -avE '^ +[0-9]+: |^ +at ' | head -n 80 | cut -c1-400 | sed 's/^/   /'
        else
            tail -n 60 "$log" | sed 's/^/   /'
        fi
    fi
    echo "   $name: $p passed, $f failed, $((SECONDS - began)) s"
}
only=("$@")
export TELESTO_BIN="$CARGO_TARGET_DIR/debug/telesto"
# Threads of tests get the stack that threads of a server have: without optimisation the frames of definitions and cursors are large.
export RUST_MIN_STACK=8388608

# One selection of crates throughout (--workspace), so that nothing is compiled twice.
stage build cargo build --workspace
stage unit cargo test --workspace --no-fail-fast
tests/servers/ensure.sh || die "the S3 servers could not be installed"
stage s3 cargo test --workspace --test servers
stage kill9 cargo test --workspace --test kill9
stage rules cargo test --workspace --test rules -- --nocapture
stage stops_nothing cargo test --workspace --test stops_nothing -- --nocapture
stage online_kill9 cargo test --workspace --test online_kill9
stage writers cargo test --workspace --test four_writers
stage cluster cargo test --workspace --test cluster_processes -- --nocapture
stage regions cargo test --workspace --test regions -- --nocapture
stage middlebox cargo test --workspace --test middlebox -- --nocapture
stage one_folder cargo test --workspace --test one_folder -- --nocapture
stage board cargo test --workspace --test board -- --nocapture
stage partitions tests/e2e/partitions.sh
stage memory cargo test --workspace --test memory -- --nocapture --test-threads 1
stage fuzz cargo test --workspace --test targets
stage full tests/e2e/disk_full.sh
stage psql tests/e2e/psql.sh
stage encryption tests/e2e/encryption.sh
stage pg_dump tests/e2e/pg_dump.sh
stage psycopg tests/e2e/psycopg.sh
stage orms tests/e2e/orms.sh
stage sqlalchemy tests/e2e/sqlalchemy_suite.sh
# Every suite, on a folder; `tests/e2e/drivers.sh` runs them on S3 too.
stage drivers env TARGETS=folder tests/e2e/drivers.sh node/node_postgres node/knex node/drizzle node/drizzle_kit node/typeorm go/pgx go/gorm \
    java/pgjdbc java/metadata java/hibernate java/liquibase java/flyway rust/tokio-postgres rust/sqlx
stage pgbench tests/e2e/pgbench.sh
stage sqlsmith tests/e2e/sqlsmith.sh
stage wiki tests/e2e/wiki.sh
stage bookstore tests/e2e/bookstore.sh
stage dump tests/e2e/dump.sh
stage console_assets tests/e2e/console_assets.sh
stage console tests/e2e/console.sh
stage kit tests/e2e/kit.sh

if [ "${#failures[@]}" -gt 0 ]; then echo; echo "failed stages: ${failures[*]} (logs in $logs)"; fi
echo
if [ "$skipped" = 0 ]; then echo "$passed passed, $failed failed"; else echo "$passed passed, $failed failed, $skipped skipped"; fi
[ "$failed" = 0 ] && [ "${#failures[@]}" = 0 ] && [ "$passed" -gt 0 ]
