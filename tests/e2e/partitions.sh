#!/usr/bin/env bash
# Three nodes cut off from each other in every shape (partitions.rs), in network namespaces of their own; then CloudTPS' Figure 9 in short:
# that program looks for every acknowledged commit itself.
# Exit code 77: no network namespaces and bridges may be made here.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/setup.sh
need_rust
command -v ip >/dev/null 2>&1 || { echo "no ip (Debian package iproute2); nodes were not cut off from each other" >&2; exit 77; }
# One of each kind that the test makes.
probe() {
    local name="telesto-probe-$$" status=0
    { ip netns add "$name" && ip link add "tp$$" type bridge && ip link add "tq$$" type veth peer name eth0 netns "$name"; } 2>/dev/null || status=1
    ip link del "tq$$" 2>/dev/null || :
    ip link del "tp$$" 2>/dev/null || :
    ip netns del "$name" 2>/dev/null || :
    return "$status"
}
probe || { echo "no network namespaces, bridges or veth devices may be made here (it takes root); nodes were not cut off from each other" >&2; exit 77; }
cargo test --workspace --test partitions -- --nocapture
tests_need_telesto
cargo build --quiet --workspace --bin telesto-failover-bench
"$CARGO_TARGET_DIR/debug/telesto-failover-bench" --timeline --away 1
