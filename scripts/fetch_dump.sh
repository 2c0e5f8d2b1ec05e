#!/usr/bin/env bash
# Fetches a small real English Wikipedia dump (206 pages) and prints its path. It travels inside a Python package.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh >&2
name="enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
target="$TELESTO_CACHE/dumps/$name"
if [ ! -s "$target" ]; then
    need_python >&2
    work="$(mktemp -d)"
    trap 'rm -rf "$work"' EXIT
    echo "fetching the dump (28 MB, once)" >&2
    "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" gensim==4.4.0 >&2 \
        || die "the package gensim, which carries the dump, could not be fetched; give another dump: telesto-demo import mediawiki FILE --url postgres://telesto@127.0.0.1:5433/telesto"
    mkdir -p "$TELESTO_CACHE/dumps"
    "$PYTHON" - "$work" "$name" "$target" <<'PY'
import glob, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
inside = [n for n in wheel.namelist() if n.endswith("/" + sys.argv[2])]
if not inside:
    sys.exit("the package no longer carries " + sys.argv[2])
open(sys.argv[3] + ".part", "wb").write(wheel.read(inside[0]))
PY
    mv "$target.part" "$target"
fi
echo "$target"
