#!/usr/bin/env bash
# A social network in seven regions on this machine, with the links and users of Saturn's evaluation; stops everything at the end. TIME=60s SEED=1.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
say "building telesto (the first time this takes a while: DataFusion, SlateDB and the cloud clients)"
[ -n "${TELESTO_BIN:-}" ] || cargo build -p telesto
exec "${TELESTO_BIN:-$CARGO_TARGET_DIR/debug/telesto}" demo social --time "${TIME:-60s}" --seed "${SEED:-1}"
