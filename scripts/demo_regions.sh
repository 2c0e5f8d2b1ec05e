#!/usr/bin/env bash
# Three regions on this machine, slow links between them, one region cut off and back; stops everything at the end. TIME=40s SEED=1.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
say "building telesto (the first time this takes a while: DataFusion, SlateDB and the cloud clients)"
[ -n "${TELESTO_BIN:-}" ] || cargo build -p telesto
exec "${TELESTO_BIN:-$CARGO_TARGET_DIR/debug/telesto}" demo regions --time "${TIME:-40s}" --seed "${SEED:-1}"
