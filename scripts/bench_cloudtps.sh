#!/usr/bin/env bash
# What CloudTPS' paper measured (Figures 6 to 9), as tables; with plots where OUT names a folder.
# Arguments are those of `telesto-demo bench cloudtps`. Figure 9 cuts networks, which takes root; AWAY=15: seconds of each of its failures.
#   TELESTO_BIN=…/telesto DEMO=…/telesto-demo BENCH_BIN=…/telesto-failover-bench     takes programs that are built
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
if [ -z "${TELESTO_BIN:-}" ] || [ -z "${DEMO:-}" ] || [ -z "${BENCH_BIN:-}" ]; then
    say "building (release)"
    cargo build --release --quiet -p telesto -p telesto-demo -p telesto-failover-bench
    export TELESTO_BIN="$CARGO_TARGET_DIR/release/telesto"
    DEMO="$CARGO_TARGET_DIR/release/telesto-demo"
    BENCH_BIN="$CARGO_TARGET_DIR/release/telesto-failover-bench"
fi
out=(${OUT:+--out "$OUT"})
"$DEMO" bench cloudtps ${out[@]+"${out[@]}"} "$@"
say "Figure 9: three nodes, cut off and killed in turns"
if [ "$(id -u)" != 0 ]; then
    say "left out: it makes networks that can be cut, which takes root; telesto-demo cluster shows failures without partitions"
    exit 0
fi
# `ip` knows no --version.
command -v ip >/dev/null 2>&1 || install_debian iproute2
"$BENCH_BIN" --timeline --away "${AWAY:-15}" ${out[@]+"${out[@]}"}
