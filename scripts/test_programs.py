#!/usr/bin/env python3
"""Compiles every test program of the workspace and runs them, two at once: what one leaves of the cores while it waits, the
other one uses. Otherwise as `cargo test --workspace --no-fail-fast`, which runs them one after another.

    scripts/test_programs.py [NAME...]   all programs, or those of these names

What a program prints is shown whole when it has ended; of those that run when this is ended, what they have printed so far.
Exit code 1 if one failed, or did not compile. TELESTO_TEST_JOBS: how many run at once (2).
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

# Those that take longest begin first, so that none of them runs alone at the end.
LONG = ["slt", "cluster", "regions", "generated", "texts", "roles_generated", "hostile", "damage", "cold_open", "seeds", "sql", "plants"]


def compiled():
    """Programs as (name, folder of their crate, file, what cargo calls them); None if something does not compile."""
    command = ["cargo", "test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]
    cargo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    programs = []
    for line in cargo.stdout:
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            folder, target = os.path.dirname(message["manifest_path"]), message["target"]
            source = os.path.relpath(target["src_path"], folder)
            label = source if target["kind"] == ["test"] else f"unittests {source}"
            programs.append((target["name"], folder, message["executable"], label))
    return programs if cargo.wait() == 0 else None


class Runs:
    def __init__(self, programs):
        self.left, self.failed, self.lock, self.under_way = list(programs), [], threading.Lock(), {}

    def work(self):
        while True:
            with self.lock:
                if not self.left:
                    return
                program = self.left.pop(0)
            self.run(program)

    def run(self, program):
        name, folder, file, label = program
        began = time.monotonic()
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            child = subprocess.Popen(
                [file], cwd=folder, env=dict(os.environ, CARGO_MANIFEST_DIR=folder), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT)
            with self.lock:
                self.under_way[file] = (child, output, label)
            status = child.wait()
            with self.lock:
                del self.under_way[file]
                show(output, label, file)
                print(f"     {os.path.basename(folder)}/{label}: exit {status}, {time.monotonic() - began:.0f} s", flush=True)
                if status != 0:
                    self.failed.append(f"{os.path.basename(folder)}/{label}")

    def end(self, *_):
        for file, (child, output, label) in list(self.under_way.items()):
            show(output, label, file)
            child.terminate()
        os._exit(143)


def show(output, label, file):
    output.seek(0)
    print(f"     Running {label} ({file})\n{output.read()}", flush=True)


def main():
    programs = compiled()
    if programs is None:
        return 1
    chosen = [program for program in programs if len(sys.argv) < 2 or program[0] in sys.argv[1:]]
    if not chosen:
        print("error: no program has one of these names", file=sys.stderr)
        return 1
    chosen.sort(key=lambda program: LONG.index(program[0]) if program[0] in LONG else len(LONG))
    runs = Runs(chosen)
    signal.signal(signal.SIGTERM, runs.end)
    workers = [threading.Thread(target=runs.work) for _ in range(int(os.environ.get("TELESTO_TEST_JOBS", "2")))]
    for worker in workers:
        worker.daemon = True
        worker.start()
    # A thread that is joined keeps signals waiting; one that is looked at does not.
    while any(worker.is_alive() for worker in workers):
        time.sleep(0.2)
    if runs.failed:
        print(f"failed: {', '.join(runs.failed)}")
    return 1 if runs.failed else 0


if __name__ == "__main__":
    sys.exit(main())
