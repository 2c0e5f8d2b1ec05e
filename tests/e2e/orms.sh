#!/usr/bin/env bash
# Unmodified drivers, ORMs and their migrations against a live node; the checks are in tests/drivers/.
#   TARGETS="folder s3" tests/e2e/orms.sh [django_orm sqlalchemy_smoke asyncpg_smoke]
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/e2e/node.sh
need_python
hold_setup
if ! "$PYTHON" -m pip install --quiet --disable-pip-version-check -r tests/drivers/requirements.txt; then
    die "pip could not install what tests/drivers/requirements.txt lists; is the network up?"
fi
release_setup
[ $# -gt 0 ] || set -- django_orm sqlalchemy_smoke asyncpg_smoke
checks() {
    local name
    for name in "$@"; do
        say "$name on ${BUCKET%%:*}"
        "$PYTHON" "tests/drivers/$name.py" 127.0.0.1 "$PORT" telesto telesto
    done
}
on_each_target checks "$@"
