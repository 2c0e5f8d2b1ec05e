#!/usr/bin/env bash
# Installs the S3 servers the tests run against, once, under $HOME/.cache/telesto/bin.
#   tests/servers/ensure.sh              versitygw and minio
#   tests/servers/ensure.sh versitygw    only that one
# The tests start and stop them themselves, on 127.0.0.1 and free ports.
set -euo pipefail
bin="$HOME/.cache/telesto/bin"
mkdir -p "$bin"
wanted=("$@")
[ "${#wanted[@]}" -gt 0 ] || wanted=(versitygw minio)

install_with_go() {
    local name="$1" module="$2"
    [ -x "$bin/$name" ] && return 0
    if [ -x "$HOME/go/bin/$name" ]; then
        cp "$HOME/go/bin/$name" "$bin/$name.new" && mv "$bin/$name.new" "$bin/$name"
        return 0
    fi
    command -v go >/dev/null 2>&1 || {
        echo "error: Go is missing; install it (https://go.dev/dl, 1.24 or newer), then run this again" >&2
        exit 1
    }
    echo "installing $name (once, a few minutes)"
    GOBIN="$bin" GOFLAGS=-mod=mod go install "$module"
}

for name in "${wanted[@]}"; do
    case "$name" in
    versitygw) install_with_go versitygw github.com/versity/versitygw/cmd/versitygw@v1.8.0 ;;
    minio) install_with_go minio github.com/minio/minio@latest ;;
    *)
        echo "error: no S3 server called $name; there are versitygw and minio" >&2
        exit 1
        ;;
    esac
    [ -x "$bin/$name" ] || {
        echo "error: $name is not at $bin/$name after installing it" >&2
        exit 1
    }
done
