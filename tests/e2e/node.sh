# Sourced by the scripts beside it: a node on a fresh folder, stopped and removed at the end.
#   start_node [telesto start options…]   sets PORT, HTTP, WORK
. scripts/setup.sh
need_rust
WORK="$(mktemp -d)"
NODE=""
cleanup() {
    if [ -n "$NODE" ]; then
        kill "$NODE" 2>/dev/null && wait "$NODE" 2>/dev/null || true
    fi
    rm -rf "$WORK"
}
trap cleanup EXIT

start_node() {
    [ -n "${TELESTO_BIN:-}" ] || cargo build -q -p telesto
    PORT="$(free_port)" HTTP="$(free_port)"
    "${TELESTO_BIN:-$CARGO_TARGET_DIR/debug/telesto}" start --bucket "file://$WORK/bucket" --data-dir "$WORK/node" \
        --listen "127.0.0.1:$PORT" --http "127.0.0.1:$HTTP" "$@" >"$WORK/node.log" 2>&1 &
    NODE=$!
    if ! wait_for 120 answers; then
        cat "$WORK/node.log" >&2
        die "the node did not start"
    fi
}

answers() {
    kill -0 "$NODE" && python3 - "$HTTP" <<'PY'
import sys, urllib.request
urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/health", timeout=5).read()
PY
}

# stop_node: SIGTERM; fails unless the node ends by itself with exit code 0.
stop_node() {
    kill "$NODE"
    if ! wait "$NODE"; then
        cat "$WORK/node.log" >&2
        die "the node did not stop in order"
    fi
    NODE=""
}
