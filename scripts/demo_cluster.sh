#!/usr/bin/env bash
# Three nodes on this machine, a load, one node killed every ten seconds; stops everything at the end. TIME=60s.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
say "building telesto (the first time this takes a while: DataFusion, SlateDB and the cloud clients)"
[ -n "${TELESTO_BIN:-}" ] || cargo build -p telesto
exec "${TELESTO_BIN:-$CARGO_TARGET_DIR/debug/telesto}" demo cluster --time "${TIME:-60s}"
