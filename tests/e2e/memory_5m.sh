#!/usr/bin/env bash
# A transaction of five million rows: commits, survives a kill, is folded, survives another, within the memory bound.
#   tests/e2e/memory_5m.sh [ROWS]     the limit in MiB: TELESTO_MEMORY_MB (64)
# scripts/test.sh runs the same test with fewer rows; this takes minutes in a development build.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/setup.sh
need_rust
TELESTO_BIG_ROWS="${1:-5000000}" cargo test --workspace --test memory -- --nocapture \
    write_set_far_larger_than_memory_commits_whole_and_outlives_the_process
