#!/usr/bin/env bash
# The long versions of what make test runs briefly; hours. Ends in one line "N passed, N failed".
#   scripts/soak.sh            all stages
#   scripts/soak.sh NAME...    only these
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
logs="${TELESTO_TEST_LOGS:-$(mktemp -d)}"
mkdir -p "$logs"
passed=0 failed=0
only=("$@")
export TELESTO_BIN="$CARGO_TARGET_DIR/debug/telesto" RUST_MIN_STACK=8388608

# stage NAME COMMAND...
stage() {
    local name="$1" began=$SECONDS status=0; shift
    if [ "${#only[@]}" -gt 0 ] && [[ ! " ${only[*]} " == *" $name "* ]]; then return 0; fi
    say "$name"
    "$@" >"$logs/$name.log" 2>&1 || status=$?
    tail -n 12 "$logs/$name.log" | sed 's/^/   /'
    if [ "$status" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    echo "   $name: exit $status, $((SECONDS - began)) s, the whole in $logs/$name.log"
}

cargo build --workspace || die "the build failed"
tests/servers/ensure.sh || die "the S3 servers could not be installed"
# Two programs play seeds at once, one a core.
seeds() { # seeds FIRST COUNT OPTION...
    local first="$1" count="$2" half=$(($2 / 2)) other=0; shift 2
    cargo run --quiet -p telesto-sim -- --seed "$((first + half))" --count "$((count - half))" "$@" >"$logs/seeds-$*.log" 2>&1 &
    other=$!
    cargo run --quiet -p telesto-sim -- --seed "$first" --count "$half" "$@" || { wait "$other"; return 1; }
    wait "$other" || { tail -n 40 "$logs/seeds-$*.log"; return 1; }
}
stage sim seeds 1 "${SOAK_SEEDS:-10000}"
stage sim_sql seeds 1 "${SOAK_SQL_SEEDS:-1000}" --sql
stage sim_geo cargo run --release --quiet -p telesto-geo-sim -- --seed 1 --count "${SOAK_GEO_SEEDS:-20000}"
stage regions_seeds env TELESTO_REGIONS_SEEDS="${SOAK_REGIONS_SEEDS:-20000}" cargo test --workspace --test regions histories
stage cluster_storm env TELESTO_STORM_SEEDS="${SOAK_STORM_SEEDS:-1000}" cargo test --workspace --test storm -- --nocapture storm_over
stage cluster env TELESTO_SOAK_SECONDS="${SOAK_SECONDS:-600}" cargo test --workspace --test cluster_processes -- --nocapture three
stage regions env TELESTO_REGIONS_SECONDS="${SOAK_SECONDS:-600}" cargo test --workspace --test regions_processes -- --nocapture
stage middlebox env TELESTO_SOAK_SECONDS="${SOAK_SECONDS:-600}" cargo test --workspace --test middlebox -- --nocapture
stage one_folder env TELESTO_SOAK_SECONDS="${SOAK_SECONDS:-600}" TELESTO_SOAK_OPENS=200 cargo test --workspace --test one_folder -- --nocapture
stage partitions env TELESTO_SOAK_SECONDS="${SOAK_SECONDS:-600}" tests/e2e/partitions.sh
stage clocks env TELESTO_SOAK_SECONDS="${SOAK_SECONDS:-600}" tests/e2e/clocks.sh
stage outage env TELESTO_OUTAGE_SECONDS=40 TELESTO_SOAK_SECONDS="${SOAK_SECONDS:-600}" cargo test --workspace --test outage -- --nocapture
stage folder env TELESTO_TRIM_SLOTS="${SOAK_SLOTS:-150000}" cargo test --workspace --test log folder_of_many_slots
stage sqlsmith env SQLSMITH_CORE_HOURS="${SOAK_CORE_HOURS:-4}" tests/e2e/sqlsmith.sh
stage regress tests/e2e/regress.sh
stage field env FIELD_PARTS="tpch tpcc ycsb smallbank tatp" FIELD_SCALE=0.1 FIELD_SECONDS="${SOAK_FIELD_SECONDS:-30}" tests/e2e/field.sh
stage stops_nothing env TELESTO_HOSTILE="${SOAK_HOSTILE:-50}" cargo test --workspace --test stops_nothing -- --nocapture generated
stage generated env TELESTO_GENERATED_SEED=2 TELESTO_GENERATED_STATEMENTS="${SOAK_STATEMENTS:-200000}" cargo test --workspace --test generated
stage roles env TELESTO_ROLES_SEED=1 TELESTO_ROLES_ROUNDS="${SOAK_ROUNDS:-100}" cargo test --workspace --test roles_generated

echo
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
