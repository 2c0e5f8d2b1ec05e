#!/usr/bin/env bash
# A social network in seven regions on this machine, with the links and users of Saturn's evaluation; stops everything at the end. TIME=60s SEED=1.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
build_demo
exec "$DEMO" social --time "${TIME:-60s}" --seed "${SEED:-1}"
