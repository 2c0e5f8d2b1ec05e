#!/usr/bin/env bash
# Three nodes whose clocks are set ahead and back while they work (clocks.rs), by libfaketime.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/setup.sh
need_rust
need_debian faketime faketime
TELESTO_FAKETIME="$(dpkg -L libfaketime | grep -m 1 'libfaketimeMT\.so' || true)"
[ -e "$TELESTO_FAKETIME" ] || die "libfaketime is not where its package says: $TELESTO_FAKETIME"
export TELESTO_FAKETIME
exec cargo test --workspace --test clocks -- --nocapture
