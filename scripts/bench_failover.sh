#!/usr/bin/env bash
# For how long commits stop when a node of three fails: a table (docs/operating/benchmarks.md). It takes root.
#   RUNS=9 scripts/bench_failover.sh [--fault kill ...]
# Builds the development profile; TELESTO_BIN: another telesto program, such as an optimised one.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
# `ip` knows no --version.
command -v ip >/dev/null 2>&1 || install_debian iproute2
if [ -z "${TELESTO_BIN:-}" ]; then
    cargo build --quiet -p telesto
    export TELESTO_BIN="$CARGO_TARGET_DIR/debug/telesto"
fi
exec cargo run --quiet -p telesto-failover-bench -- --runs "${RUNS:-9}" "$@"
