"""Workloads of the field beside PostgreSQL 15, in turns: TPC-H's queries, TPC-C by go-tpc, YCSB, SmallBank and TATP by pgbench.

Both are loaded alike. Answers of TPC-H are compared; a query whose answers differ ends the run with an error.
"""

import argparse
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

import psycopg

FIELD = pathlib.Path(__file__).resolve().parent.parent / "bench" / "field"
TABLES = ["region", "nation", "part", "supplier", "partsupp", "customer", "orders", "lineitem"]
# What the project wants to reach, Telesto by PostgreSQL.
AIMS = {"TPC-C": 1.0, "ycsb": 1.0, "smallbank": 1.0, "tatp": 1.0}


def say(text):
    print(text, flush=True)


def run(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def psql(url, *arguments):
    run(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", url, *arguments])


def timed(work):
    begin = time.monotonic()
    out = work()
    return time.monotonic() - begin, out


def same(ours, theirs):
    """Whether two answers are equal: numbers as numbers, floats nearly."""

    def cell(value):
        return round(float(value), 6) if isinstance(value, float) else value

    return [[cell(v) for v in row] for row in ours] == [[cell(v) for v in row] for row in theirs]


def tpch(options):
    folder = pathlib.Path(options.work) / f"tpch-{options.scale}"
    run([options.tpchgen, "tbl", "-s", str(options.scale), "--output-dir", str(folder)])
    for table in TABLES:
        file = folder / f"{table}.tbl"
        file.write_text(file.read_text().replace("|\n", "\n"))

    def load(url):
        psql(url, "-f", str(FIELD / "tpch" / "schema.sql"))
        for table in TABLES:
            psql(url, "-c", f"\\copy {table} from '{folder / table}.tbl' with (delimiter '|')")

    def keys(url):
        psql(url, "-f", str(FIELD / "tpch" / "keys.sql"))

    say(f"\n## TPC-H, scale {options.scale}: milliseconds of the fastest of {options.rounds} runs in turns")
    say("| query | Telesto | PostgreSQL | PostgreSQL by Telesto |\n| --- | --- | --- | --- |")
    for what, work in (("load", load), ("keys and indexes", keys)):
        took = {name: timed(lambda url=url: work(url))[0] for name, url in options.urls.items()}
        say(f"| {what} | {took['ours'] * 1e3:.0f} | {took['theirs'] * 1e3:.0f} | {took['theirs'] / took['ours']:.2f} |")
    connections = {name: psycopg.connect(url, autocommit=True) for name, url in options.urls.items()}
    ratios = {}
    for file in sorted((FIELD / "tpch" / "queries").glob("*.sql")):
        query = file.read_text()
        took, rows = {"ours": [], "theirs": []}, {}
        for _ in range(options.rounds):
            for name, connection in connections.items():
                seconds, rows[name] = timed(lambda c=connection: c.execute(query).fetchall())
                took[name].append(seconds)
        if not same(rows["ours"], rows["theirs"]):
            sys.exit(f"error: query {file.stem} answers otherwise than PostgreSQL:\n{rows['ours'][:5]}\n{rows['theirs'][:5]}")
        ours, theirs = min(took["ours"]), min(took["theirs"])
        ratios[file.stem] = theirs / ours
        say(f"| {file.stem} | {ours * 1e3:.1f} | {theirs * 1e3:.1f} | {theirs / ours:.2f} |")
    mean = math.exp(statistics.mean(map(math.log, ratios.values())))
    least = min(ratios, key=ratios.get)
    say(f"| geometric mean | | | {mean:.2f} (aim 1.0) |\n| least | | | {ratios[least]:.2f}, query {least} (aim 0.2) |")


def table_of_rates():
    say("\n| workload | Telesto /s | PostgreSQL /s | ratio (least to greatest) | aim |\n| --- | --- | --- | --- | --- |")


def rate_line(name, rates):
    pairs = [ours / theirs for ours, theirs in zip(rates["ours"], rates["theirs"])]
    middle = {name: statistics.median(rate) for name, rate in rates.items()}
    say(
        f"| {name} | {middle['ours']:,.0f} | {middle['theirs']:,.0f} | {statistics.median(pairs):.2f} "
        f"({min(pairs):.2f} to {max(pairs):.2f}) | {AIMS[name]} |"
    )


def serializable():
    return {**os.environ, "PGOPTIONS": "-c default_transaction_isolation=serializable"}


def mix(options, name):
    folder = FIELD / name
    for url in options.urls.values():
        psql(url, "-f", str(folder / "load.sql"))
    scripts = []
    for line in (folder / "mix").read_text().splitlines():
        script, weight = line.split()
        scripts += ["-f", f"{folder / script}.sql@{weight}"]
    rates = {"ours": [], "theirs": []}
    for _ in range(options.rounds):
        for system, url in options.urls.items():
            command = ["pgbench", "-n", "-M", "prepared", "-c", str(options.clients), "-j", "1", "-T", str(options.seconds)]
            told = run([*command, "--max-tries=100", *scripts, url], env=serializable())
            failed = re.search(r"number of failed transactions: (\d+)", told)
            if failed and int(failed[1]):
                say(f"{name}, {system}: {failed[1]} transactions gave up after 100 tries")
            rates[system].append(float(re.search(r"^tps = ([\d.]+)", told, re.M)[1]))
    rate_line(name, rates)


def tpcc(options):
    """Counted are transactions that succeeded; go-tpc does not repeat those that conflict."""

    def command(url, *arguments):
        parts = psycopg.conninfo.conninfo_to_dict(url)
        address = ["-H", parts["host"], "-P", str(parts["port"]), "-D", parts["dbname"], "-U", parts["user"], "-p", "none"]
        common = ["--warehouses", str(options.warehouses), "-T", str(options.clients), "--conn-params", "sslmode=disable&search_path=tpcc"]
        return [options.gotpc, "tpcc", *arguments, "-d", "postgres", *address, *common]

    for url in options.urls.values():
        psql(url, "-c", "CREATE SCHEMA tpcc")
        run(command(url, "prepare", "--no-check"))
    rates = {"ours": [], "theirs": []}
    for _ in range(options.rounds):
        for system, url in options.urls.items():
            limits = ["--time", f"{options.seconds}s", "--isolation", "6", "--ignore-error", "--silence"]
            told = run(command(url, "run", *limits))
            done = re.findall(r"\[Summary\] ([A-Z_]+) .*?Count: (\d+)", told)
            count = sum(int(number) for what, number in done if not what.endswith("_ERR"))
            rates[system].append(max(count, 1) / options.seconds)
    for url in options.urls.values():
        run(command(url, "check"))
    rate_line("TPC-C", rates)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--theirs", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--parts", default="tpch tpcc ycsb smallbank tatp")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--warehouses", type=int, default=2)
    parser.add_argument("--tpchgen")
    parser.add_argument("--gotpc")
    options = parser.parse_args()
    options.urls = {"ours": options.ours, "theirs": options.theirs}
    parts = options.parts.split()
    if "tpch" in parts:
        tpch(options)
    rated = [part for part in parts if part != "tpch"]
    if rated:
        say(f"\n## Transactions at SERIALIZABLE, {options.clients} clients, {options.rounds} rounds of {options.seconds} s in turns")
        table_of_rates()
    for part in rated:
        if part == "tpcc":
            tpcc(options)
        else:
            mix(options, part)


main()
