#!/usr/bin/env bash
# rustfmt, clippy (with the determinism lint set of clippy.toml), rustdoc, house rules, licences and advisories.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
cargo fmt --all --check
cargo clippy --workspace --all-targets --quiet -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --quiet
cargo test --quiet -p telesto-tidy
need_cargo_deny
# Advisories need a database from the network; licences, bans and sources do not.
cargo deny --offline check --hide-inclusion-graph licenses bans sources
echo "lint: clean"
