# Sourced by the scripts beside it: a node on a fresh folder, stopped and removed at the end.
#   start_node [telesto start options…]      sets PORT, HTTP, WORK
#   start_s3_node [telesto start options…]   the same on a bucket of a fresh S3 server, which stop_s3 stops
#   on_each_target COMMAND...                COMMAND with a node on each of TARGETS, a list of folder and s3 (folder)
. scripts/setup.sh
need_rust
WORK="$(mktemp -d)"
NODE=""
S3=""
BUCKET="file://$WORK/bucket"
cleanup() {
    if [ -n "$NODE" ]; then
        kill "$NODE" 2>/dev/null && wait "$NODE" 2>/dev/null || true
    fi
    [ -z "$S3" ] || stop_s3
    rm -rf "$WORK"
}
trap cleanup EXIT

start_node() {
    [ -n "${TELESTO_BIN:-}" ] || cargo build -q -p telesto
    # Here and not only by the node's own redirection, which may come after the first look for "Ready.": that of a node
    # before it would count.
    : >"$WORK/node.log"
    # The node chooses its ports and prints them: one found free beforehand may be another's by then.
    "${TELESTO_BIN:-$CARGO_TARGET_DIR/debug/telesto}" start --bucket "$BUCKET" --data-dir "$WORK/node" \
        --listen 127.0.0.1:0 --http 127.0.0.1:0 "$@" >"$WORK/node.log" 2>&1 &
    NODE=$!
    if ! wait_for 120 settled || ! ready; then
        cat "$WORK/node.log" >&2
        die "the node did not start"
    fi
    PORT="$(printed postgres)" HTTP="$(printed http)"
    wait_for 30 answers || die "the node does not answer"
}

ready() { grep -qx 'Ready\.' "$WORK/node.log"; }

# settled: the node is ready, or ended.
settled() { ready || ! kill -0 "$NODE"; }

# printed NAME: the port of the address that the node printed after NAME.
printed() { awk -v name="$1" '$1 == name { sub(/.*:/, "", $2); print $2; exit }' "$WORK/node.log"; }

start_s3_node() {
    tests/servers/ensure.sh versitygw
    local port
    port="$(free_port)"
    mkdir -p "$WORK/s3/telesto"
    ROOT_ACCESS_KEY=admin ROOT_SECRET_KEY=adminadmin versitygw --port "127.0.0.1:$port" --keep-alive --quiet posix "$WORK/s3" >"$WORK/s3.log" 2>&1 &
    S3=$!
    export AWS_ENDPOINT_URL="http://127.0.0.1:$port" AWS_ACCESS_KEY_ID=admin AWS_SECRET_ACCESS_KEY=adminadmin AWS_REGION=us-east-1
    wait_for 30 python3 -c "import socket; socket.create_connection(('127.0.0.1', $port), 1)" && kill -0 "$S3" || die "the S3 server did not start: $(cat "$WORK/s3.log")"
    BUCKET="s3://telesto/drivers"
    rm -rf "$WORK/node"
    start_node "$@"
}

stop_s3() {
    kill "$S3" 2>/dev/null && wait "$S3" 2>/dev/null || true
    S3=""
    BUCKET="file://$WORK/bucket"
    unset AWS_ENDPOINT_URL AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_REGION
}

# on_each_target COMMAND...: a fresh node on each of TARGETS, COMMAND, an orderly stop.
on_each_target() {
    local target
    for target in ${TARGETS:-folder}; do
        rm -rf "$WORK/node" "$WORK/bucket"
        case "$target" in
        folder) start_node ;;
        s3) start_s3_node ;;
        *) die "no target $target; there are folder and s3" ;;
        esac
        "$@"
        stop_node
        [ "$target" != s3 ] || stop_s3
    done
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
