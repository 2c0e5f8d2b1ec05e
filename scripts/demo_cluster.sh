#!/usr/bin/env bash
# Three nodes on this machine, a load, one node killed every ten seconds; stops everything at the end. TIME=60s.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
build_demo
exec "$DEMO" cluster --time "${TIME:-60s}"
