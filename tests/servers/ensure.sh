#!/usr/bin/env bash
# Installs the S3 servers the tests run against, once, under $HOME/.cache/telesto/bin.
#   tests/servers/ensure.sh              versitygw and minio
#   tests/servers/ensure.sh versitygw    only that one
# The tests start and stop them themselves, on 127.0.0.1 and free ports.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/setup.sh
bin="$TELESTO_CACHE/bin"
wanted=("$@")
[ "${#wanted[@]}" -gt 0 ] || wanted=(versitygw minio)

# Both are distributed as source only; building takes minutes and a GiB of memory.
install_with_go() {
    local name="$1" module="$2"
    "$bin/$name" --version >/dev/null 2>&1 && return 0
    need_go 25
    say "building $name (once, a few minutes)"
    GOBIN="$bin" GOFLAGS='-mod=mod -buildvcs=false' GOTOOLCHAIN=local go install "$module" \
        || die "go install $module failed; is the network up? Then run this again"
    "$bin/$name" --version >/dev/null 2>&1 || die "$bin/$name does not run after installing it; remove it and run this again"
}

for name in "${wanted[@]}"; do
    case "$name" in
    versitygw) install_with_go versitygw github.com/versity/versitygw/cmd/versitygw@v1.8.0 ;;
    minio) install_with_go minio github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c ;;
    *) die "no S3 server called $name; there are versitygw and minio" ;;
    esac
done
