#!/usr/bin/env python3
"""PostgreSQL's own regression files, statement by statement, on a node and on PostgreSQL 15 side by side.

    regress.py --ours URL --theirs URL [--setup FILE] [--at-least PERCENT] [--differences FILE] FILE...

Each file is split into its statements, with a mark of psql's after each, and run by psql on either server, from its beginning to its
end in one session, as PostgreSQL's own harness does. What is printed between two marks is compared: rows (in any order where the statement
has no ORDER BY), or the SQLSTATE. Notices are left aside.

A statement counts as one that needs a missing feature when it names one (MISSING below), or an object that such a statement would have
made, and the node answers it with an error: these are counted apart. What EXPLAIN prints is either server's own and counts only when one of
them refuses. Everything else has to agree.

Ends with status 1 if a file agrees in less than PERCENT of the statements that count.
"""
import argparse
import pathlib
import re
import subprocess
import sys

# What docs/sql.md and its pages list as not there, by the words that ask for it.
MISSING = re.compile(
    r"""\b(
        create\s+(or\s+replace\s+)?(function|procedure|aggregate|operator|rule|language|trigger|constraint\s+trigger|cast|
            materialized\s+view|foreign|server|extension|tablespace|event\s+trigger|publication|subscription|type\s+\w+\s+as\s+\(|
            collation|conversion|access\s+method|transform|text\s+search)
      | (drop|alter|comment\s+on|security\s+label\s+on)\s+(function|procedure|routine|aggregate|operator|rule|language|trigger|
            materialized\s+view|foreign|server|tablespace|large\s+object|extension)
      | (grant|revoke)\b.*\bon\s+(all\s+)?(function|procedure|routine|language|large\s+object|foreign|parameter|tablespace)s?
      | alter\s+default\s+privileges\b.*\bon\s+(functions|routines)
      | inherits\s*\( | inherit\s+\w+ | partition\s+(of|by) | attach\s+partition | detach\s+partition
      | lo_\w+ | loread | lowrite | has_(function|language|foreign_data_wrapper|server|tablespace|parameter)_privilege | pg_largeobject\w*
      | create\s+schema\s+\w+\s+(create|grant) | do\s+\$ | do\s+language | refresh\s+materialized | lock\s+table | lock\s+\w+
      | md5[0-9a-f]{32} | password_encryption\s*=\s*'md5' | tablesample | alter\s+system | pg_advisory\w* | plpgsql | \\lo_\w+
    )""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
# The object a refused statement would have made.
MAKES = re.compile(
    r"create\s+(?:or\s+replace\s+)?(?:temp(?:orary)?\s+|constraint\s+|materialized\s+|foreign\s+|unlogged\s+)*"
    r"(?:function|procedure|aggregate|operator|rule|trigger|view|table|type|domain|language|collation)\s+"
    r"(?:if\s+not\s+exists\s+)?(?:\w+\.)?\"?(\w+)",
    re.IGNORECASE,
)
# The folder of PostgreSQL's files.
SOURCES = None
# Objects that other files of PostgreSQL's schedule would have made.
ELSEWHERE = re.compile(r"\b(tenk1|onek|int4_tbl|int8_tbl|text_tbl|float8_tbl)\b", re.IGNORECASE)


def statements(text):
    """The statements of a file with their data, in psql's own way of reading: to a semicolon outside of quotes, comments, parentheses."""
    found, unit, quote, depth, data = [], [], None, 0, False
    for line in text.splitlines():
        if data:
            unit.append(line)
            if line == "\\.":
                data = False
                found.append("\n".join(unit))
                unit = []
            continue
        if not unit and line.startswith("\\") and quote is None:
            found.append(line)
            continue
        if not unit and (not line.strip() or line.lstrip().startswith("--")):
            continue
        unit.append(line)
        at, ends = 0, False
        while at < len(line):
            rest = line[at:]
            if quote == "/*":
                end = rest.find("*/")
                if end < 0:
                    break
                quote, at = None, at + end + 2
                continue
            if quote is not None:
                end = rest.find(quote)
                if end < 0:
                    break
                quote, at = None, at + end + len(quote)
                continue
            dollar = re.match(r"\$(\w*)\$", rest)
            if rest.startswith("--"):
                break
            if rest.startswith("/*"):
                quote, at = "/*", at + 2
            elif dollar:
                quote, at = dollar.group(0), at + len(dollar.group(0))
            elif rest[0] in "'\"":
                quote, at = rest[0], at + 1
            else:
                depth += {"(": 1, ")": -1}.get(rest[0], 0)
                if rest[0] == ";" and depth <= 0:
                    ends = True
                elif rest[0] == "\\" and quote is None:
                    ends = True
                    break
                elif not rest[0].isspace():
                    ends = False
                at += 1
        if ends and quote is None:
            depth = 0
            if re.match(r"\s*copy\b.*\bfrom\s+stdin", " ".join(unit), re.IGNORECASE):
                data = True
                continue
            found.append("\n".join(unit))
            unit = []
    if unit:
        found.append("\n".join(unit))
    return found


def from_here(units):
    """PostgreSQL's preparation lets the server read files beside it: the same by psql."""
    filename, here = None, []
    for unit in units:
        named = re.match(r"\\set filename :abs_srcdir '([^']+)'", unit)
        if named:
            filename = named.group(1)
        copied = re.match(r"copy (\w+) from :'filename'(.*);", unit, re.IGNORECASE)
        here.append(f"\\copy {copied.group(1)} from '{SOURCES}{filename}'{copied.group(2)}" if copied else unit)
    return here


def run(url, units):
    """What psql prints for each statement."""
    head = "\\set VERBOSITY sqlstate\n\\set SHOW_CONTEXT never\n\\pset pager off\n\\pset null '(null)'\n"
    script = head + "".join(f"{unit}\n\\echo @@{number}\n" for number, unit in enumerate(units))
    done = subprocess.run(
        ["psql", "-X", "-q", "-A", "-d", url], input=script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=600, check=False,
    )
    printed, part = [], []
    for line in done.stdout.splitlines():
        if line == f"@@{len(printed)}":
            printed.append(part)
            part = []
        else:
            part.append(line)
    if len(printed) < len(units):
        # psql ended before: what it said last belongs to the statement that ended it.
        printed.append(part)
        printed += [["(the session was over)"]] * (len(units) - len(printed))
    return printed


ASIDE = re.compile(r"^(NOTICE|WARNING|INFO|LOG|DEBUG|HINT|DETAIL|CONTEXT|LINE \d+):|^(psql:.*?)?(NOTICE|WARNING|INFO): ")


def plain(lines, unit):
    lines = [line.rstrip() for line in lines if line.strip() and not ASIDE.match(line)]
    if not re.search(r"order\s+by", unit, re.IGNORECASE) and len(lines) > 2:
        lines = lines[:1] + sorted(lines[1:])
    return lines


def compare(path, ours, theirs):
    """Agreeing, differing (with what either said) and missing statements of a file."""
    units = from_here(statements(path.read_text(errors="replace")))
    agree, differ, missing, gone = 0, [], [], set()
    for unit, our, their in zip(units, run(ours, units), run(theirs, units)):
        our, their = plain(our, unit), plain(their, unit)
        bare = re.sub(r"--.*", "", unit)
        fails = any("ERROR:" in line for line in our)
        words = set(re.findall(r"\w+", bare.lower()))
        needs = bool(MISSING.search(bare) or ELSEWHERE.search(bare) or words & gone)
        if fails and our != their:
            made = MAKES.search(bare)
            if needs and made:
                gone.add(made.group(1).lower())
        # What stands where an MD5 password would.
        needs = needs or any(re.search(r"md5[0-9a-f]{32}", line) for line in their)
        if our == their:
            agree += 1
        elif re.match(r"\s*explain\b", bare, re.IGNORECASE) and fails == any("ERROR:" in line for line in their):
            continue
        elif needs:
            missing.append((unit, our, their))
        else:
            differ.append((unit, our, their))
    return agree, differ, missing


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", required=True)
    parser.add_argument("--theirs", required=True)
    parser.add_argument("--setup", type=pathlib.Path, help="run on both before, in a session of its own")
    parser.add_argument("--at-least", type=float, default=0.0)
    parser.add_argument("--differences", type=pathlib.Path)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    low, said = [], []
    global SOURCES
    SOURCES = arguments.files[0].resolve().parent.parent
    if arguments.setup:
        before = from_here(statements(arguments.setup.read_text()))
        for url in (arguments.ours, arguments.theirs):
            run(url, before)
    print(f"{'file':<24}{'agree':>8}{'differ':>8}{'missing':>9}{'of those that count':>22}")
    for path in arguments.files:
        agree, differ, missing = compare(path, arguments.ours, arguments.theirs)
        share = 100.0 * agree / max(1, agree + len(differ))
        print(f"{path.stem:<24}{agree:>8}{len(differ):>8}{len(missing):>9}{share:>20.1f} %", flush=True)
        if share < arguments.at_least:
            low.append(path.stem)
        for kind, these in (("differs", differ), ("missing", missing)):
            for unit, our, their in these:
                said.append(f"=== {path.stem}: {kind}\n{unit}\n--- PostgreSQL\n" + "\n".join(their) + "\n--- here\n" + "\n".join(our) + "\n")
    if arguments.differences:
        arguments.differences.write_text("\n".join(said))
    if low:
        sys.exit(f"less than {arguments.at_least} % of the statements that count agree: {', '.join(low)}")


main()
