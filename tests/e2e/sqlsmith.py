"""Queries that sqlsmith makes at random from a node's catalog, seed by seed, until the node has worked on them for so many
processor hours: a statement may fail, but not with an internal error (XX000), not without an end, and never take the node with
it. What went wrong is printed with its seed and its text.

    sqlsmith.py CONNINFO PID CORE-HOURS FIRST-SEED
"""

import os
import random
import re
import subprocess
import sys
import time

import psycopg

PER_SEED = 1000
# The node ends a statement after two seconds; one that is not answered long after is a hang.
STATEMENT_SECONDS, HANG_SECONDS = 2, 60
GENERATE_SECONDS = 600


def processor_seconds(pid):
    """What the node has used so far; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
    except FileNotFoundError:
        return None
    if fields[0] == "Z":
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def texts(conninfo, seed):
    """The statements of one seed. sqlsmith asks a node for its catalog, and makes statements without executing them."""
    command = ["sqlsmith", f"--target={conninfo}", "--exclude-catalog", "--dry-run", f"--max-queries={PER_SEED}", f"--seed={seed}"]
    try:
        made = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=GENERATE_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"sqlsmith did not end within {GENERATE_SECONDS} s with seed {seed}: none of its statements", flush=True)
        return
    if made.returncode != 0:
        sys.exit(f"sqlsmith ended with {made.returncode} at seed {seed}: {made.stderr[-500:]}")
    for text in made.stdout.split(";\n"):
        text = text.strip()
        if text:
            # Half of the seeds without samples: most of sqlsmith's are of views, which nobody samples.
            yield text if seed % 2 else re.sub(r"tablesample \w+ \([\d.]+\)", "", text)


def connect(conninfo):
    connection = psycopg.connect(conninfo, autocommit=True, connect_timeout=30)
    connection.execute(f"SET statement_timeout = '{STATEMENT_SECONDS}s'")
    return connection


def main(conninfo, pid, hours, seed):
    began, base = time.monotonic(), processor_seconds(pid)
    statements, answered, wrong, codes, told = 0, 0, 0, {}, 0
    connection = connect(conninfo)
    while True:
        used = processor_seconds(pid)
        if used is None:
            sys.exit(f"the node ended (seed {seed})")
        if used - base >= hours * 3600:
            break
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(f"{(used - base) / 3600:.2f} core-hours, {statements} statements, {answered} answered, {wrong} wrong", flush=True)
        for text in texts(conninfo, seed):
            at = time.monotonic()
            statements += 1
            try:
                cursor = connection.execute(text)
                if cursor.description:
                    cursor.fetchmany(1)
                answered += 1
                code = "00000"
            except psycopg.Error as error:
                code = error.sqlstate or "closed"
            codes[code] = codes.get(code, 0) + 1
            took = time.monotonic() - at
            if code in ("XX000", "XX001", "XX002", "closed", "57P01", "57P03") or took > HANG_SECONDS:
                wrong += 1
                print(f"-- seed {seed}: {code} after {took:.1f} s\n{text};", flush=True)
                if connection.closed:
                    connection = connect(conninfo)
            if processor_seconds(pid) is None:
                sys.exit(f"the node ended (seed {seed}) at\n{text};")
        seed += 1
    listed = ", ".join(f"{code} {count}" for code, count in sorted(codes.items(), key=lambda entry: -entry[1])[:12])
    print(f"{(used - base) / 3600:.2f} core-hours in {time.monotonic() - began:.0f} s up to seed {seed}: {statements} statements, "
          f"{answered} answered, {wrong} wrong ({listed})")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(1 << 20))
