#!/usr/bin/env bash
# A real Wikipedia dump, imported into Telesto (killed half way and resumed) and into PostgreSQL, answers alike.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/setup.sh
need_rust
TELESTO_WIKI_DUMP="$(scripts/fetch_dump.sh)"
port="$(free_port)"
trap 'tests/servers/postgres.sh stop "$port"' EXIT
TELESTO_POSTGRES_URL="$(tests/servers/postgres.sh start "$port" | tail -n 1)"
tests_need_telesto
export TELESTO_WIKI_DUMP TELESTO_POSTGRES_URL
cargo test --workspace --test wiki
