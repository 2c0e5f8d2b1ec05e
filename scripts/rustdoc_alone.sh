#!/usr/bin/env bash
# rustdoc for the lint, which wants its warnings and nobody reads its pages: each crate is written to a folder that is removed
# afterwards. In a folder that all share, each writes the search index of all crates anew, and the others wait for it: that took
# most of the lint's time. Cargo finds the page that it looks for.
set -euo pipefail
args=("$@") shared="" crate=""
for at in "${!args[@]}"; do
    case "${args[$at]}" in
    -o | --out-dir) shared="${args[$((at + 1))]}" where="$((at + 1))" ;;
    --crate-name) crate="${args[$((at + 1))]}" ;;
    esac
done
[ -n "$shared" ] && [ -n "$crate" ] || exec rustdoc "$@"
own="$(mktemp -d)"
trap 'rm -rf "$own"' EXIT
args[$where]="$own"
rustdoc "${args[@]}"
mkdir -p "$shared/$crate"
: >"$shared/$crate/index.html"
