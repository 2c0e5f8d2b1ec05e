#!/usr/bin/env bash
# The bookstore in two regions on this machine, an application server in each; stops everything at the end. SECONDS_EACH=30 CLIENTS=4 MIX=ordering.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
build_demo
exec "$DEMO" bookstore --regions --customers "${CUSTOMERS:-1000}" --items "${ITEMS:-1000}" \
    --seconds "${SECONDS_EACH:-30}" --clients "${CLIENTS:-4}" --mix "${MIX:-ordering}"
