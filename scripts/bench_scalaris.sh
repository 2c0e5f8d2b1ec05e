#!/usr/bin/env bash
# What Scalaris' paper measured (Figure 3), as tables; with plots where OUT names a folder. Arguments are those of `telesto-demo bench scalaris`.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
say "building (release)"
cargo build --release --quiet -p telesto -p telesto-demo
exec "$CARGO_TARGET_DIR/release/telesto-demo" bench scalaris ${OUT:+--out "$OUT"} "$@"
