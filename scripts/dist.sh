#!/usr/bin/env bash
# A release archive for this kind of machine: the binary without debug information, README, licence and the documentation; beside
# it the debug information, the demos' binary (which runs the other, and looks for it in its own folder), and checksums of all.
#   scripts/dist.sh [FOLDER]     default: $CARGO_TARGET_DIR/dist
# A debugger takes the information by the binary's build id: `objcopy` has put its name and checksum into the binary.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_rust
need_debian objcopy binutils
out="${1:-$CARGO_TARGET_DIR/dist}"
mkdir -p "$out"
say "building (release)"
# One after the other: the product is what it is without the demos.
cargo build --release --locked -p telesto
cargo build --release --locked -p telesto-demo
built="$CARGO_TARGET_DIR/release/telesto"
version="$("$built" version | awk '{print $2}')"
target="$(rustc -vV | awk '/^host:/ {print $2}')"
name="telesto-$version-$target" demo="telesto-demo-$version-$target"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
say "packing $name"
mkdir -p "$work/$name" "$work/$demo"
objcopy --only-keep-debug "$built" "$work/telesto.debug"
objcopy --strip-all "$built" "$work/$name/telesto"
(cd "$work" && objcopy --add-gnu-debuglink=telesto.debug "$name/telesto")
"$work/$name/telesto" version >/dev/null || die "the stripped binary does not run"
objcopy --strip-all "$CARGO_TARGET_DIR/release/telesto-demo" "$work/$demo/telesto-demo"
"$work/$demo/telesto-demo" --version >/dev/null || die "the stripped binary of the demos does not run"
cp LICENSE "$work/$demo/"
cp README.md LICENSE CHANGELOG.md "$work/$name/"
cp -r docs "$work/$name/docs"
# The same contents give the same archive: names in order, no owner, the time of the commit.
time="$(git log -1 --format=%ct 2>/dev/null || echo 0)"
pack() { tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$time" -C "$work" -cf - "$1" | gzip -n -6 >"$out/$2"; }
pack "$name" "$name.tar.gz"
pack "$demo" "$demo.tar.gz"
pack telesto.debug "$name-debug.tar.gz"
(cd "$out" && sha256sum "$name.tar.gz" "$name-debug.tar.gz" "$demo.tar.gz" >"$name.sha256" && sha256sum --check --quiet "$name.sha256")
size() { du -h --apparent-size "$1" | cut -f1; }
echo "binary, with debug information: $(size "$built"); stripped: $(size "$work/$name/telesto"); of the demos, stripped: $(size "$work/$demo/telesto-demo")"
for file in "$name.tar.gz" "$name-debug.tar.gz" "$demo.tar.gz" "$name.sha256"; do echo "$out/$file  $(size "$out/$file")"; done
