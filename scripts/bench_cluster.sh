#!/usr/bin/env bash
# What a transaction costs on one, three and five nodes, as a table; then three nodes beside etcd of three members, by one client.
#   BENCH_NODES=1,3,5 BENCH_SECONDS=5 BENCH_ROUNDS=3 BENCH_RECORDS=20000 scripts/bench_cluster.sh
#   BENCH_PARTS="counts etcd" TELESTO_BIN=…/telesto BENCH_BIN=…/telesto-cluster-bench     takes programs that are built
# The client is go-ycsb, which speaks to both: workload C (reads) and F (half reads, half reads of a record that is then written), records
# of 1 KB, 8 clients, all at the owner or the leader. Processor time is that of the servers.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
seconds="${BENCH_SECONDS:-5}" rounds="${BENCH_ROUNDS:-3}" records="${BENCH_RECORDS:-20000}" parts=" ${BENCH_PARTS:-counts etcd} "
bench="${BENCH_BIN:-}"
if [ -z "${TELESTO_BIN:-}" ] || [ -z "$bench" ]; then
    say "building (release)"
    cargo build --release --quiet -p telesto -p telesto-cluster-bench
    export TELESTO_BIN="$CARGO_TARGET_DIR/release/telesto"
    bench="$CARGO_TARGET_DIR/release/telesto-cluster-bench"
fi
if [[ "$parts" == *" counts "* ]]; then
    say "what a transaction costs"
    "$bench" --nodes "${BENCH_NODES:-1,3,5}" --seconds "$seconds" --rows "$records"
fi
[[ "$parts" == *" etcd "* ]] || exit 0

# go-ycsb pins one dependency in its own module file, which `go install` of another module does not follow.
need_go_ycsb() {
    local bin="$TELESTO_CACHE/bin/go-ycsb" folder
    "$bin" --help >/dev/null 2>&1 && return 0
    need_go 25
    say "building go-ycsb (once, a few minutes)"
    folder="$(mktemp -d)"
    (
        cd "$folder"
        printf 'module ycsb\n\ngo 1.25\n\nrequire github.com/pingcap/go-ycsb v1.0.3\n\nreplace github.com/apache/thrift => github.com/apache/thrift v0.0.0-20171203172758-327ebb6c2b6d\n' >go.mod
        GOTOOLCHAIN=local go build -mod=mod -buildvcs=false -o "$bin" github.com/pingcap/go-ycsb/cmd/go-ycsb
    ) || die "go build of go-ycsb failed; is the network up? Then run this again"
    rm -rf "$folder"
    "$bin" --help >/dev/null 2>&1 || die "$bin does not run after building it; remove it and run this again"
}
# Debian's package wants to start a server of its own.
need_etcd() {
    command -v etcd >/dev/null 2>&1 && command -v etcdctl >/dev/null 2>&1 && return 0
    hold_setup
    local folder
    folder="$(mktemp -d)"
    (
        cd "$folder"
        get() { apt-get download -qq etcd-server etcd-client >/dev/null; }
        get || { as_root apt-get update -qq >/dev/null && get; }
        for package in *.deb; do dpkg -x "$package" .; done
        cp usr/bin/etcd usr/bin/etcdctl "$TELESTO_CACHE/bin/"
    ) || die "etcd could not be fetched; install Debian's etcd-server and etcd-client by hand"
    rm -rf "$folder"
    release_setup
}
need_go_ycsb
need_etcd
work="$(mktemp -d)"
members=()
finish() {
    exec 3>&- || :
    for pid in ${members[@]+"${members[@]}"} ${serving:-}; do kill -9 "$pid" 2>/dev/null || :; wait "$pid" 2>/dev/null || :; done
    rm -rf "$work"
}
trap finish EXIT

say "three nodes and three members, starting"
mkfifo "$work/hold"
"$bench" --serve 3 --rows 1 <"$work/hold" >"$work/nodes" 2>"$work/nodes.err" &
serving=$!
exec 3>"$work/hold"
wait_for 120 grep -qx serving "$work/nodes" || { cat "$work/nodes.err"; die "the nodes did not start"; }
ours="$(awk '$1 == "owner" { print $2 }' "$work/nodes")"
our_pids="$(awk '$1 == "owner" || $1 == "follower" { print $3 }' "$work/nodes")"

peers="" endpoints="" clients=()
for name in a b c; do
    peer="$(free_port)" client="$(free_port)"
    clients+=("$client")
    peers="$peers${peers:+,}$name=http://127.0.0.1:$peer"
    endpoints="$endpoints${endpoints:+,}127.0.0.1:$client"
done
index=0
for name in a b c; do
    url="$(tr ',' '\n' <<<"$peers" | sed -n "s/^$name=//p")"
    ETCD_UNSUPPORTED_ARCH="$(uname -m)" etcd --name "$name" --data-dir "$work/etcd-$name" --listen-peer-urls "$url" --initial-advertise-peer-urls "$url" \
        --listen-client-urls "http://127.0.0.1:${clients[$index]}" --advertise-client-urls "http://127.0.0.1:${clients[$index]}" \
        --initial-cluster "$peers" --initial-cluster-state new --quota-backend-bytes 6442450944 --logger zap --log-level error >"$work/etcd-$name.log" 2>&1 &
    members+=("$!")
    index=$((index + 1))
done
export ETCDCTL_API=3
healthy() { etcdctl --endpoints "$endpoints" endpoint health; }
wait_for 60 healthy || { cat "$work"/etcd-*.log; die "etcd did not start"; }
theirs="$(etcdctl --endpoints "$endpoints" endpoint status --write-out json |
    python3 -c 'import json, sys; print(next(e["Endpoint"] for e in json.load(sys.stdin) if e["Status"]["leader"] == e["Status"]["header"]["member_id"]))')"
their_pids="${members[*]}"

ycsb() { # ycsb load|run SERVER WORKLOAD…
    local what="$1" server="$2"; shift 2
    local at=(etcd -p "etcd.endpoints=$theirs")
    [ "$server" = etcd ] || at=(pg -p pg.host=127.0.0.1 -p "pg.port=$ours" -p pg.user=telesto -p pg.db=telesto -p pg.sslmode=disable)
    go-ycsb "$what" "${at[@]}" -p "recordcount=$records" -p threadcount=8 -p requestdistribution=uniform -p workload=core "$@"
}
for server in telesto etcd; do
    say "loading $records records: $server"
    ycsb load "$server" >"$work/load-$server" 2>&1 || { tail -n 5 "$work/load-$server"; die "loading failed"; }
    grep -E '^(INSERT|TOTAL)' "$work/load-$server" | tail -n 1
done
say "go-ycsb, 8 clients, $rounds rounds of $seconds s in turns"
python3 scripts/bench_cluster_rounds.py "$rounds" "$seconds" "$records" "$ours" "$theirs" "$(echo $our_pids)" "$their_pids"
