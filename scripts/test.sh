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

only=("$@")
# Stages that mostly wait run side by side. Each has a log, a folder and ports of its own.
jobs="${TELESTO_TEST_JOBS:-2}"
running=() # NAME=PID of stages that were started beside others and are not reported yet
# Every stage has a process group of its own and would not hear that the whole is to end.
end() {
    trap - INT TERM
    local pid
    for pid in "$logs"/*.pid; do [ -e "$pid" ] && kill -TERM "$(cat "$pid")" 2>/dev/null; done
    exit 130
}
trap end INT TERM
# A stage that does not end within these seconds is ended, and has failed; it says where it stood.
bound() { case "$1" in build | unit) echo 2400 ;; *) echo 1500 ;; esac; }

wanted() { [ "${#only[@]}" = 0 ] || [[ " ${only[*]} " == *" $1 "* ]]; }

# stage NAME COMMAND...: runs it alone, when all others have ended.
stage() {
    wanted "$1" || return 0
    settle 0
    say "$1"
    run "$@"
    report "$1"
}

# beside NAME COMMAND...: runs it beside others.
beside() {
    wanted "$1" || return 0
    settle "$((jobs - 1))"
    say "$1 begins"
    rm -f "$logs/$1.status"
    run "$@" &
    running+=("$1=$!")
}

# settle N: waits until at most N stages run; reports those that ended.
settle() {
    while [ "${#running[@]}" -gt "$1" ]; do
        local left=() each name pid
        for each in "${running[@]}"; do
            name="${each%%=*}" pid="${each#*=}"
            if kill -0 "$pid" 2>/dev/null; then left+=("$each"); continue; fi
            # One that was killed has left no status.
            [ -e "$logs/$name.status" ] || echo "137 0" >"$logs/$name.status"
            say "$name"
            report "$name"
        done
        [ "${#left[@]}" -lt "${#running[@]}" ] || sleep 0.5
        running=(${left[@]+"${left[@]}"})
    done
}

# run NAME COMMAND...: leaves its output in NAME.log, its exit code and its seconds in NAME.status.
run() {
    local name="$1" began=$SECONDS status=0; shift
    # What runs shortly before its end, and what that waits for.
    (sleep "$(($(bound "$name") - 10))" && ps -eo pid,ppid,stat,etimes,wchan:24,args --forest >"$logs/$name.processes") >/dev/null 2>&1 &
    local watch="$!"
    timeout -k 30 "$(bound "$name")" "$@" >"$logs/$name.log" 2>&1 </dev/null &
    echo "$!" >"$logs/$name.pid"
    wait "$!" || status=$?
    pkill -P "$watch" 2>/dev/null
    kill "$watch" 2>/dev/null
    rm -f "$logs/$name.pid"
    echo "$status $((SECONDS - began))" >"$logs/$name.status"
}

# report NAME: counts cargo's "test result" lines (or the stage as one test), and says what failed. Exit code 77: what it needs
# cannot be had on this machine; it says what, and that is shown and counted.
report() {
    local name="$1" log="$logs/$1.log" status took p f
    read -r status took <"$logs/$name.status"
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
        if [ "$status" = 124 ] || [ "$status" = 137 ]; then
            echo "   It did not end within $(bound "$name") s. Tests that were running for long, and its end:"
            grep -aE '^test .* has been running for over' "$log" | while read -r _ test _; do
                grep -aqE "^test $test .*\.\.\. " "$log" || echo "   $test"
            done
            grep -avE '\]$' "$logs/$name.processes" 2>/dev/null | cut -c1-220 | tail -n 40 | sed 's/^/   /'
            tail -n 20 "$log" | sed 's/^/   /'
        fi
        # Which tests, and what they said; of a stage without such lines, or a build that failed, its end.
        if [ "$f" -gt 0 ] && grep -aqE '^test .* FAILED$' "$log"; then
            grep -aE '^test .* FAILED$' "$log" | sed 's/^/   /'
            grep -aE -A12 "^thread '.*panicked at" "$log" | grep -avE '^ +[0-9]+: |^ +at ' | head -n 80 | cut -c1-400 | sed 's/^/   /'
        else
            tail -n 60 "$log" | sed 's/^/   /'
        fi
    fi
    echo "   $name: $p passed, $f failed, $took s"
}
export TELESTO_BIN="$CARGO_TARGET_DIR/debug/telesto"
# Threads of tests get the stack that threads of a server have: without optimisation the frames of definitions and cursors are large.
export RUST_MIN_STACK=8388608

# One selection of crates throughout (--workspace), so that nothing is compiled twice.
stage build cargo build --workspace
stage unit scripts/test_programs.py
tests/servers/ensure.sh || die "the S3 servers could not be installed"
# These look at times or at the machine's memory: alone.
stage stops_nothing cargo test --workspace --test stops_nothing -- --nocapture
stage board cargo test --workspace --test board -- --nocapture
stage memory cargo test --workspace --test memory -- --nocapture --test-threads 1
# Long ones first.
beside sqlalchemy tests/e2e/sqlalchemy_suite.sh
beside partitions tests/e2e/partitions.sh
beside cluster cargo test --workspace --test cluster_processes -- --nocapture
beside clocks tests/e2e/clocks.sh
beside outage cargo test --workspace --test outage -- --nocapture
# Every suite, on a folder; `tests/e2e/drivers.sh` runs them on S3 too.
beside drivers env TARGETS=folder tests/e2e/drivers.sh node/node_postgres node/knex node/drizzle node/drizzle_kit node/typeorm go/pgx go/gorm \
    java/pgjdbc java/metadata java/hibernate java/liquibase java/flyway rust/tokio-postgres rust/sqlx
beside regions cargo test --workspace --test regions_processes -- --nocapture
beside regions_nodes cargo test --workspace --test regions_nodes -- --nocapture
beside regions_rows tests/e2e/regions_rows.sh
beside rules cargo test --workspace --test rules -- --nocapture
beside restart cargo test --workspace --test restart -- --nocapture
beside kill9 cargo test --workspace --test kill9
beside wiki tests/e2e/wiki.sh
beside bookstore tests/e2e/bookstore.sh
beside orms tests/e2e/orms.sh
beside encryption tests/e2e/encryption.sh
beside backup tests/e2e/backup.sh
beside table_keys tests/e2e/table_keys.sh
beside kms tests/e2e/kms.sh
beside hangup tests/e2e/hangup.sh
beside console tests/e2e/console.sh
beside middlebox cargo test --workspace --test middlebox -- --nocapture
beside one_folder cargo test --workspace --test one_folder -- --nocapture
beside online_kill9 cargo test --workspace --test online_kill9
beside writers cargo test --workspace --test four_writers
beside sqlsmith tests/e2e/sqlsmith.sh
beside one_bucket tests/e2e/one_bucket.sh
beside s3 cargo test --workspace --test servers
beside pgbench tests/e2e/pgbench.sh
beside field tests/e2e/field.sh
beside dump tests/e2e/dump.sh
beside full tests/e2e/disk_full.sh
beside fuzz cargo test --workspace --test targets
beside pg_dump tests/e2e/pg_dump.sh
beside psql tests/e2e/psql.sh
beside psycopg tests/e2e/psycopg.sh
beside console_assets tests/e2e/console_assets.sh
beside kit tests/e2e/kit.sh

settle 0
if [ "${#failures[@]}" -gt 0 ]; then echo; echo "failed stages: ${failures[*]} (logs in $logs)"; fi
echo
if [ "$skipped" = 0 ]; then echo "$passed passed, $failed failed"; else echo "$passed passed, $failed failed, $skipped skipped"; fi
[ "$failed" = 0 ] && [ "${#failures[@]}" = 0 ] && [ "$passed" -gt 0 ]
