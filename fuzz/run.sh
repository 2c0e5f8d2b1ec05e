#!/usr/bin/env bash
# Fuzzes for longer than `make test` does: seed after seed until the time is over.
#   fuzz/run.sh SECONDS [TARGET...]    all targets by default
# A finding ends it with the input's hexadecimal line; add that to fuzz/corpus/TARGET.hex together with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
until="$((SECONDS + ${1:?usage: fuzz/run.sh SECONDS [TARGET...]}))"; shift
cargo test --quiet --workspace --test targets --no-run
# Another start for every call; each is shown, so that a finding can be run again.
seed="$(date +%s)"
while [ "$SECONDS" -lt "$until" ]; do
    echo "seed $seed: TELESTO_FUZZ_SEED=$seed TELESTO_FUZZ_RUNS=5 cargo test --workspace --test targets"
    TELESTO_FUZZ_SEED="$seed" TELESTO_FUZZ_RUNS=5 cargo test --quiet --workspace --test targets -- --exact "$@"
    seed=$((seed + 1))
done
