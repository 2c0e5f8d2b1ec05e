#!/usr/bin/env bash
# Builds the console's scripts and styles from what package-lock.json pins.
#   tests/e2e/console_assets.sh            fails if the bundle that is part of the source has other bytes
#   tests/e2e/console_assets.sh --write    puts the new bundle in its place
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/setup.sh
need_debian node nodejs npm
dist="$PWD/crates/console/assets/dist"
cd crates/console/web
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error || die "npm ci failed; is the network up?"
npx --no-install tsc --noEmit
if [ "${1:-}" = --write ]; then
    rm -rf "$dist"
    mkdir -p "$dist"
    node build.mjs "$dist"
    exit 0
fi
made="$(mktemp -d)"
trap 'rm -rf "$made"' EXIT
node build.mjs "$made"
diff -rq "$made" "$dist" || die "the bundle is not what crates/console/web makes: run make console-assets and commit it"
