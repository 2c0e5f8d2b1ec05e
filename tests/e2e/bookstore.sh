#!/usr/bin/env bash
# TPC-W's bookstore in Telesto and in PostgreSQL: the same rows, the same pages, every mix, and the shop adds up.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/setup.sh
need_rust
port="$(free_port)"
trap 'tests/servers/postgres.sh stop "$port"' EXIT
TELESTO_POSTGRES_URL="$(tests/servers/postgres.sh start "$port" | tail -n 1)"
tests_need_telesto
export TELESTO_POSTGRES_URL
cargo test --workspace --test bookstore -- --test-threads 1
