"""The rounds of scripts/bench_cluster.sh beside etcd: runs go-ycsb in turns, prints medians.

Arguments: rounds, seconds of each, records, port of the owner, endpoint of the leader, process ids of the nodes, and of the members.
A run that reports failed operations ends the program; those that the end of a run breaks off do not count as such.
"""

import os
import re
import signal
import statistics
import subprocess
import sys
import time

ROUNDS, SECONDS, RECORDS = (int(word) for word in sys.argv[1:4])
PORT, LEADER = sys.argv[4:6]
PIDS = {"Telesto": sys.argv[6].split(), "etcd": sys.argv[7].split()}
AT = {
    "Telesto": ["pg", "-p", "pg.host=127.0.0.1", "-p", f"pg.port={PORT}", "-p", "pg.user=telesto", "-p", "pg.db=telesto",
                "-p", "pg.sslmode=disable"],
    "etcd": ["etcd", "-p", f"etcd.endpoints={LEADER}"],
}
WORK = {
    "reads (C)": (["readproportion=1", "updateproportion=0"], "READ"),
    "reads, and reads then written (F)": (["readproportion=0.5", "updateproportion=0", "readmodifywriteproportion=0.5"], "READ_MODIFY_WRITE"),
}
TICKS = os.sysconf("SC_CLK_TCK")


def processor(pids):
    """Seconds of processor time that these processes have used."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def run(server, properties):
    """Operations, operations a second and 99th percentiles in ms by kind, processor seconds."""
    command = ["go-ycsb", "run", *AT[server]]
    options = ["workload=core", f"recordcount={RECORDS}", "operationcount=1000000000", "threadcount=8",
               "requestdistribution=uniform", *properties]
    for option in options:
        command += ["-p", option]
    before = processor(PIDS[server])
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as client:
        time.sleep(SECONDS)
        # It knows no end by time; on this signal it stops and tells what it did.
        client.send_signal(signal.SIGINT)
        try:
            said, _ = client.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            client.kill()
            sys.exit(f"go-ycsb on {server} does not stop")
    used = processor(PIDS[server]) - before
    last = said.split("to exit")[-1]
    kinds = {}
    for line in last.splitlines():
        found = re.match(r"(\w+)\s+- Takes\(s\): ([\d.]+), Count: (\d+), OPS: ([\d.]+).*?99th\(us\): (\d+)", line)
        if found:
            kinds[found[1]] = (int(found[3]), float(found[4]), int(found[5]) / 1000)
    # What was under way when it was told to stop counts as failed: one operation of each client at most.
    failed = sum(kinds.pop(kind)[0] for kind in list(kinds) if kind.endswith("ERROR"))
    if failed > 8 or not kinds:
        sys.exit(f"go-ycsb on {server} failed ({failed} operations):\n{said[-3000:]}")
    return kinds, used


def main():
    print("| work | server | operations/s | p99 ms | operations for a processor second of the servers |")
    print("| --- | --- | --- | --- | --- |")
    for name, (properties, slowest) in WORK.items():
        seen = {server: [] for server in PIDS}
        for round_ in range(ROUNDS):
            order = list(PIDS) if round_ % 2 == 0 else list(PIDS)[::-1]
            for server in order:
                kinds, used = run(server, properties)
                # A READ_MODIFY_WRITE is counted as its READ and UPDATE, too: it is one operation here.
                whole = {kind: figures for kind, figures in kinds.items() if kind not in ("TOTAL", "UPDATE")}
                if "READ_MODIFY_WRITE" in whole:
                    reads, rate, p99 = whole["READ"]
                    both, rate_both, _ = whole["READ_MODIFY_WRITE"]
                    whole["READ"] = (reads - both, rate - rate_both, p99)
                operations = sum(count for count, _, _ in whole.values())
                rate = sum(rate for _, rate, _ in whole.values())
                seen[server].append((rate, kinds[slowest][2], operations / max(used, 1 / TICKS)))
        medians = {server: [statistics.median(column) for column in zip(*rows)] for server, rows in seen.items()}
        for server, (rate, p99, each) in medians.items():
            print(f"| {name} | {server} | {rate:,.0f} | {p99:.2f} | {each:,.0f} |")
        ratios = [ours / theirs for ours, theirs in zip(medians["Telesto"], medians["etcd"])]
        print(f"| {name} | ratio | {ratios[0]:.2f} | {ratios[1]:.2f} | **{ratios[2]:.2f}** (aim 3) |", flush=True)


main()
