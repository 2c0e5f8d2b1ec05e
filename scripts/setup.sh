# Sourced by the other scripts: where things are cached and how what they need gets installed.
# Everything lands under $HOME/.cache/telesto, outside the clone.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$HOME/.cache/telesto/target}"
TELESTO_CACHE="$HOME/.cache/telesto"
export TELESTO_CACHE
export PATH="$TELESTO_CACHE/bin:$TELESTO_CACHE/tools/bin:$PATH"
mkdir -p "$TELESTO_CACHE/bin" "$TELESTO_CACHE/tools"

say() { printf '\n== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# need_debian COMMAND PACKAGE...: installs Debian packages unless COMMAND is there.
need_debian() {
    local command="$1"; shift
    command -v "$command" >/dev/null 2>&1 && return 0
    local root=""
    [ "$(id -u)" = 0 ] || root=sudo
    say "installing $*"
    $root apt-get update -qq >/dev/null || die "apt-get update failed; install $* by hand"
    DEBIAN_FRONTEND=noninteractive $root apt-get install -y -qq --no-install-recommends "$@" >/dev/null \
        || die "apt-get install $* failed; install it by hand"
    command -v "$command" >/dev/null 2>&1 || die "$command is missing after installing $*"
}

need_rust() {
    command -v cargo >/dev/null 2>&1 || die "Rust is missing: install it with rustup (stable), then run this again"
    need_debian cc build-essential
    need_debian cmake cmake
}

need_cargo_deny() {
    command -v cargo-deny >/dev/null 2>&1 && return 0
    say "installing cargo-deny (once)"
    CARGO_TARGET_DIR="$TELESTO_CACHE/tools/build" RUSTFLAGS= cargo install --quiet --locked --root "$TELESTO_CACHE/tools" cargo-deny \
        || die "cargo-deny could not be installed"
}

need_python() {
    need_debian python3 python3 python3-venv python3-pip
    if [ ! -x "$TELESTO_CACHE/venv/bin/python" ]; then
        python3 -m venv "$TELESTO_CACHE/venv" || die "python3-venv is missing: apt-get install python3-venv"
    fi
    PYTHON="$TELESTO_CACHE/venv/bin/python"
    export PYTHON
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
