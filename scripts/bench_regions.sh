#!/usr/bin/env bash
# What a causal plane costs real regions, beside Saturn's Figures 5 and 8a. Arguments are those of `telesto-demo bench regions`.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
say "building (release)"
cargo build --release -p telesto -p telesto-demo
exec "$CARGO_TARGET_DIR/release/telesto-demo" bench regions "$@"
