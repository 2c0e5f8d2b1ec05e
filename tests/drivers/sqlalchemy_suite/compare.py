"""Compares what pytest reports (JUnit XML) with known.txt: compare.py REPORT telesto|postgres [--write]

known.txt lists the tests that do not pass, each group under the line that says why:

    # Why these fail.
    Class::test[parameter]

A group whose line begins with "# PostgreSQL 15 too:" fails there as well. Exit code 1: a test fails that is not listed, or one
that is listed passes. With --write what fails and is not listed is added, under a line that asks for the reason.
"""

import re
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

KNOWN = Path(__file__).with_name("known.txt")
BOTH = "# PostgreSQL 15 too:"


def listed():
    """The tests of known.txt, with the reason of each."""
    out, reason = {}, None
    for number, line in enumerate(KNOWN.read_text().splitlines(), 1):
        if line.startswith("#"):
            reason = line
        elif line:
            assert reason, f"{KNOWN.name}, line {number}: a test without a reason"
            assert line not in out, f"{KNOWN.name}, line {number}: {line} is there twice"
            out[line] = reason
    return out


def main():
    report, server = sys.argv[1], sys.argv[2]
    known = listed()
    if server == "postgres":
        known = {test: reason for test, reason in known.items() if reason.startswith(BOTH)}
    passed, failed, skipped = set(), {}, set()
    for case in xml.parse(report).getroot().iter("testcase"):
        # The class carries the dialect and the server's version: AnyTest_postgresql+psycopg_15_18.
        group = re.sub(r"_postgresql\+psycopg[_\d]*$", "", case.get("classname").removeprefix("test_suite."))
        name = f"{group}::{case.get('name')}"
        wrong = [child for child in case if child.tag in ("failure", "error")]
        if wrong:
            failed[name] = (wrong[0].get("message") or "").splitlines()[:1]
        elif case.find("skipped") is not None:
            skipped.add(name)
        else:
            passed.add(name)
    passed -= failed.keys()
    new = sorted(failed.keys() - known.keys())
    mended = sorted(known.keys() & passed)
    gone = sorted(known.keys() - passed - failed.keys() - skipped)
    for test in new:
        print(f"FAILED {test}: {''.join(failed[test])[:300]}")
    for test in mended:
        print(f"FAILED {test}: it passes now; take it out of {KNOWN.name} and count again in docs/sql/drivers.md")
    for test in gone:
        print(f"FAILED {test}: there is no such test")
    if "--write" in sys.argv and new:
        with KNOWN.open("a") as file:
            file.write("\n# Say why.\n" + "".join(f"{test}\n" for test in new))
    print(f"{len(passed)} of {len(passed) + len(failed)} pass, {len(skipped)} are for other databases")
    print(f"test result: SQLAlchemy's suite: {len(passed)} passed; {len(new) + len(mended) + len(gone)} failed")
    return 1 if new or mended or gone or not passed else 0


sys.exit(main())
