#!/usr/bin/env bash
# rustfmt, clippy (with the determinism lint set of clippy.toml), rustdoc, house rules, licences.
# Clippy and rustdoc share one check build of the dependencies, beside the one that tests link.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
need_cargo_deny
say "rustfmt"
cargo fmt --all --check
say "licences, bans, sources"
cargo fetch --locked --quiet
# Advisories need a database from the network; licences, bans and sources do not.
cargo deny --offline check --hide-inclusion-graph licenses bans sources
say "house rules"
cargo test --quiet -p telesto-tidy
say "one set of features"
# A feature that only tests turn on makes cargo compile all that stands on its crate twice: with DataFusion, ten minutes.
features() { cargo tree --workspace --locked --prefix none -f '{p} {f}' "$@" | sed 's/ (\*)$//' | sort -u; }
twice="$(comm -23 <(features -e no-dev) <(features))"
[ -z "$twice" ] || die "tests turn on more features of these than the build: add them to tools/unify/Cargo.toml
$twice"
say "clippy"
cargo clippy --workspace --all-targets --quiet -- -D warnings
say "rustdoc"
RUSTDOC="$PWD/scripts/rustdoc_alone.sh" RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --quiet
echo "lint: clean"
