#!/usr/bin/env bash
# Instructions that a session of one node executes for a statement, counted by valgrind: unlike times they do not depend on what else the machine does.
#   BENCH_ROUNDS=3 BENCH_STATEMENTS=1000 BENCH_PROFILE=folder scripts/bench_instructions.sh
#   TELESTO_BIN=target/release/telesto scripts/bench_instructions.sh     takes a program that is built
# What is counted is what sessions execute, from the message to the reply: commits, folds and compactions on tasks of their own are not in
# it (a fold that falls into one of two runs is more than all their statements). Each round counts N statements and then 2N on connections of
# their own; their difference is without what a connection costs.
# BENCH_PROFILE keeps the profiles, for callgrind_annotate --inclusive=yes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
need_debian valgrind valgrind
need_debian python3 python3
need_debian strip binutils
[ -d /usr/lib/postgresql/15/bin ] && PATH="$PATH:/usr/lib/postgresql/15/bin"
need_debian pgbench postgresql-15
rounds="${BENCH_ROUNDS:-3}" statements="${BENCH_STATEMENTS:-1000}"
bin="${TELESTO_BIN:-}"
if [ -z "$bin" ]; then
    need_rust
    say "building (release)"
    cargo build --release -p telesto
    bin="$CARGO_TARGET_DIR/release/telesto"
fi
work="$(mktemp -d)"
node=""
# Nothing of the node is kept: it is not waited for until it has folded all.
finish() { [ -z "$node" ] || { kill -9 "$node" 2>/dev/null || :; wait "$node" 2>/dev/null || :; }; rm -rf "$work"; }
trap finish EXIT
# valgrind would read more than a gigabyte of lines; functions have their names without them.
strip -g -o "$work/telesto" "$bin"
# valgrind hides the kernel's vDSO, but lets prctl(PR_GET_AUXV) tell where it would be, and the library that looks there crashes. With a
# filter that refuses this call it reads /proc/self/auxv, which valgrind answers itself. Clocks are system calls then, not counted.
cat >"$work/without_auxv.py" <<'PYTHON'
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
PRCTL, GET_AUXV, EINVAL = 157, 0x41555856, 22
program = [(0x20, 0, 0, 0), (0x15, 0, 3, PRCTL), (0x20, 0, 0, 16), (0x15, 0, 1, GET_AUXV), (0x06, 0, 0, 0x00050000 | EINVAL), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
head = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
for call in ((38, 1, 0, 0, 0), (22, 2, head, 0, 0)):
    if libc.prctl(*call) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[1], sys.argv[1:])
PYTHON
[ "$(uname -m)" = x86_64 ] || die "the filter that lets the node start under valgrind is written for x86_64"
python3 "$work/without_auxv.py" valgrind --tool=callgrind --instr-atstart=no --fair-sched=try --callgrind-out-file="$work/profile" \
    "$work/telesto" start --bucket "file://$work/bucket" --data-dir "$work/node" --listen 127.0.0.1:0 --http none --memory 1GiB \
    >"$work/log" 2>&1 &
node=$!
wait_for 300 grep -qx 'Ready\.' "$work/log" || { cat "$work/log"; die "the node did not start under valgrind"; }
port="$(awk '$1 == "postgres" { sub(/.*:/, "", $2); print $2; exit }' "$work/log")"
export PGSSLMODE=disable
at=(-h 127.0.0.1 -p "$port" -U telesto telesto)
pgbench -i -q -s 1 "${at[@]}" >/dev/null 2>&1
echo 'SELECT 1;' >"$work/constant.sql"
printf '%s\n' '\set aid random(1, 100000)' 'UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;' >"$work/update.sql"
profiles=0
# counted TRANSACTIONS OPTION...: instructions of sessions while a pgbench runs
counted() {
    local transactions="$1"; shift
    callgrind_control --zero "$node" >/dev/null 2>&1
    callgrind_control --instr=on "$node" >/dev/null 2>&1
    pgbench -n -t "$transactions" "$@" "${at[@]}" >"$work/pgbench" 2>&1 || { cat "$work/pgbench" >&2; die "pgbench failed"; }
    callgrind_control --instr=off "$node" >/dev/null 2>&1
    callgrind_control --dump "$node" >/dev/null 2>&1
    profiles=$((profiles + 1))
    count="$(callgrind_annotate --inclusive=yes --threshold=100 "$work/profile.$profiles" 2>/dev/null \
        | awk '/wire::connection::Connection::run::[{][{]closure[}][}] / { gsub(",", "", $1); if (!found++) print $1 }')"
    [ "${count:-0}" -gt 0 ] || die "the profile has no sessions"
}
# line NAME CLIENTS SHARE OPTION...: SHARE is the part of BENCH_STATEMENTS that each client runs, one in so many
line() {
    local name="$1" clients="$2" each=$((statements / $3)) once; shift 3
    [ "$each" -gt 0 ] || each=1
    pgbench -n -t "$each" -c "$clients" "$@" "${at[@]}" >/dev/null 2>&1
    : >"$work/counts"
    for _ in $(seq "$rounds"); do
        counted "$each" -c "$clients" "$@"; once="$count"
        counted $((2 * each)) -c "$clients" "$@"
        echo $(((count - once) / (each * clients))) >>"$work/counts"
    done
    sort -g "$work/counts" | awk -v name="$name" '{v[NR]=$1} END {printf "%-40s %12d %12d %12d\n", name, v[int((NR + 1) / 2)], v[1], v[NR]}'
}
say "instructions of a session for a transaction, without the kernel's ($rounds rounds)"
printf '%-40s %12s %12s %12s\n' transaction median least greatest
line "SELECT 1, prepared" 1 1 -M prepared -f "$work/constant.sql"
line "select-only, prepared" 1 1 -M prepared -S
line "select-only, prepared, 8 clients" 8 8 -M prepared -S
line "select-only, simple protocol" 1 1 -M simple -S
line "one update by key, prepared" 1 2 -M prepared -f "$work/update.sql"
line "TPC-B-like, prepared" 1 4 -M prepared
if [ -n "${BENCH_PROFILE:-}" ]; then mkdir -p "$BENCH_PROFILE"; cp "$work"/profile.* "$BENCH_PROFILE/"; fi
