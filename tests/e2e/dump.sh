#!/usr/bin/env bash
# telesto dump and telesto restore: Telesto to PostgreSQL 15 and back, pg_dump's files, snapshots, errors by line.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/setup.sh
need_rust
need_debian pg_dump postgresql-client-15
port="$(free_port)"
trap 'tests/servers/postgres.sh stop "$port"' EXIT
TELESTO_POSTGRES_URL="$(tests/servers/postgres.sh start "$port" | tail -n 1)"
export TELESTO_POSTGRES_URL
cargo test --workspace --test dump -- --test-threads 1
