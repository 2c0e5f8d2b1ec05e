"""Queries that sqlsmith makes at random from a node's catalog, seed by seed, until the node has worked on them for so many
processor hours: a statement may fail, but not with an internal error (XX000), not without an end, and never take the node with
it. What went wrong is printed with its seed and its text.

    sqlsmith.py CONNINFO PID CORE-HOURS FIRST-SEED
"""

import concurrent.futures
import os
import random
import re
import subprocess
import sys
import threading
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
        raise RuntimeError(f"sqlsmith ended with {made.returncode} at seed {seed}: {made.stderr[-500:]}")
    for text in made.stdout.split(";\n"):
        text = text.strip()
        if text:
            # Half of the seeds without samples: most of sqlsmith's are of views, which nobody samples.
            yield text if seed % 2 else re.sub(r"tablesample \w+ \([\d.]+\)", "", text)


def connect(conninfo):
    connection = psycopg.connect(conninfo, autocommit=True, connect_timeout=30)
    connection.execute(f"SET statement_timeout = '{STATEMENT_SECONDS}s'")
    return connection


class Run:
    """What all clients found, and when they are to end."""

    def __init__(self, conninfo, pid, hours, seed):
        self.conninfo, self.pid, self.hours = conninfo, pid, hours
        self.began, self.base, self.told = time.monotonic(), processor_seconds(pid), 0
        self.statements, self.answered, self.wrong, self.codes = 0, 0, 0, {}
        self.seed, self.lock, self.ended = seed, threading.Lock(), None

    def next_seed(self):
        """The seed that a client goes on with; None: the node has worked long enough, or is gone."""
        with self.lock:
            used = processor_seconds(self.pid)
            if used is None and self.ended is None:
                self.ended = f"the node ended (before seed {self.seed})"
            if self.ended is not None or used - self.base >= self.hours * 3600:
                return None
            if time.monotonic() - self.told > 60:
                self.told = time.monotonic()
                print(f"{(used - self.base) / 3600:.2f} core-hours, {self.statements} statements, {self.answered} answered, "
                      f"{self.wrong} wrong", flush=True)
            self.seed += 1
            return self.seed - 1

    def note(self, seed, text, code, took):
        """Counts a statement; whether it did something wrong."""
        with self.lock:
            self.statements += 1
            self.answered += code == "00000"
            self.codes[code] = self.codes.get(code, 0) + 1
            wrong = code in ("XX000", "XX001", "XX002", "closed", "57P01", "57P03") or took > HANG_SECONDS
            if wrong:
                self.wrong += 1
                print(f"-- seed {seed}: {code} after {took:.1f} s\n{text};", flush=True)
            if processor_seconds(self.pid) is None:
                self.ended = f"the node ended (seed {seed}) at\n{text};"
        return wrong

    def client(self):
        """Seed after seed on one connection."""
        connection = connect(self.conninfo)
        while (seed := self.next_seed()) is not None:
            for text in texts(self.conninfo, seed):
                at, code = time.monotonic(), "00000"
                try:
                    cursor = connection.execute(text)
                    if cursor.description:
                        cursor.fetchmany(1)
                except psycopg.Error as error:
                    code = error.sqlstate or "closed"
                wrong = self.note(seed, text, code, time.monotonic() - at)
                if self.ended is not None:
                    return
                if wrong and connection.closed:
                    connection = connect(self.conninfo)


def main(conninfo, pid, hours, seed):
    run = Run(conninfo, pid, hours, seed)
    # One client a core: a statement keeps about one busy, and what is made at random also runs beside others.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as clients:
        started = [clients.submit(run.client) for _ in range(os.cpu_count())]
        failed = [error for client in started if (error := client.exception()) is not None]
    used = processor_seconds(pid)
    if used is None or run.ended is not None:
        sys.exit(run.ended or "the node ended")
    if failed:
        sys.exit(f"a client failed: {failed[0]!r}")
    listed = ", ".join(f"{code} {count}" for code, count in sorted(run.codes.items(), key=lambda entry: -entry[1])[:12])
    print(f"{(used - run.base) / 3600:.2f} core-hours in {time.monotonic() - run.began:.0f} s up to seed {run.seed}: "
          f"{run.statements} statements, {run.answered} answered, {run.wrong} wrong ({listed})")
    sys.exit(1 if run.wrong else 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(1 << 20))
