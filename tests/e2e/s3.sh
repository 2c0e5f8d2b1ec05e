#!/usr/bin/env bash
# The bucket against real S3 servers: versitygw and MinIO, installed on first use.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/setup.sh
need_rust
tests/servers/ensure.sh
cargo test -p telesto-bucket --test servers
