#!/usr/bin/env bash
# Three regions on this machine, slow links between them, one region cut off and back; stops everything at the end. TIME=40s SEED=1.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
build_demo
exec "$DEMO" regions --time "${TIME:-40s}" --seed "${SEED:-1}"
