#!/usr/bin/env bash
# The console in a real browser: every page, an SQL session, log-in, both themes, two sizes, accessibility.
#   SHOTS=FOLDER tests/e2e/console.sh      keeps the screenshots there (default: a folder that is removed)
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_debian node nodejs npm
need_debian chromium chromium
need_debian psql postgresql-client
(cd tests/console && PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) \
    || die "npm ci failed; is the network up?"
shots="${SHOTS:-$WORK/shots}"
mkdir -p "$shots"
bin="${TELESTO_BIN:-$CARGO_TARGET_DIR/debug/telesto}"

say "without passwords"
start_node --prices s3-standard
psql -X -q -v ON_ERROR_STOP=1 "postgres://telesto@127.0.0.1:$PORT/telesto?sslmode=disable" -f tests/console/data.sql
URL="http://127.0.0.1:$HTTP" SHOTS="$shots" CHROMIUM="$(command -v chromium)" node tests/console/visit.mjs
stop_node

say "with passwords"
echo pencil | "$bin" hash-password ada >"$WORK/users.txt"
start_node --auth-file "$WORK/users.txt" --console read-only
URL="http://127.0.0.1:$HTTP" SHOTS="$shots" CHROMIUM="$(command -v chromium)" node tests/console/login.mjs
stop_node
