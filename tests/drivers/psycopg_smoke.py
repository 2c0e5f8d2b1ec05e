"""psycopg 3 against a running node: types in text and binary, transactions, errors, COPY, pipelines, cursors.

Usage: psycopg_smoke.py URL. Exits non-zero on the first mismatch.
"""

import datetime
import decimal
import sys
import threading
import time
import ipaddress
import uuid

import psycopg
from psycopg.types.composite import CompositeInfo, register_composite
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

URL = sys.argv[1]


def check(name, found, expected):
    if found != expected:
        sys.exit(f"FAILED {name}\nexpected: {expected!r}\nfound:    {found!r}")
    print("ok", name)


def fails(name, code, run):
    try:
        run()
    except psycopg.Error as error:
        check(name, error.sqlstate, code)
    else:
        sys.exit(f"FAILED {name}: no error")


with psycopg.connect(URL, autocommit=True) as connection:
    check("server version", connection.info.server_version // 10000, 15)
    check("encoding", connection.info.encoding, "utf-8")
    connection.execute("drop table if exists t")
    connection.execute(
        "create table t (id int primary key, b bigint, f double precision, n numeric(12, 3), s text, o boolean,"
        " y bytea, u uuid, d date, ts timestamp, tz timestamptz, j jsonb)"
    )
    row = (
        1, -(2**62), 1.5, decimal.Decimal("12345.678"), "æøå\t'\\", True, b"\x00\xff",
        uuid.UUID("12345678-1234-5678-1234-567812345678"), datetime.date(2024, 2, 29),
        datetime.datetime(2024, 2, 29, 12, 30, 15, 250000),
        datetime.datetime(2024, 2, 29, 12, 30, 15, tzinfo=datetime.timezone.utc),
    )
    places = ", ".join(["%s"] * 11)
    connection.execute(f"insert into t values ({places}, %s)", row + (psycopg.types.json.Jsonb({"a": [1, None]}),))
    connection.execute(f"insert into t (id) values (%s)", (2,))
    for binary in (False, True):
        with connection.cursor(binary=binary) as cursor:
            found = cursor.execute("select * from t where id = %s", (1,)).fetchone()
            check(f"types, binary={binary}", found, row + ({"a": [1, None]},))
            found = cursor.execute("select * from t where id = %s", (2,)).fetchone()
            check(f"nulls, binary={binary}", found, (2,) + (None,) * 11)

    for n in range(12):
        check(f"prepared {n}", connection.execute("select b + %s from t where id = 1", (n,)).fetchone(), (n - 2**62,))

    fails("syntax error", "42601", lambda: connection.execute("selec 1"))
    fails("undefined table", "42P01", lambda: connection.execute("select * from nowhere"))
    fails("unique violation", "23505", lambda: connection.execute("insert into t (id) values (1)"))
    fails("not an integer", "22P02", lambda: connection.execute("insert into t (id) values ('x')"))

    try:
        with connection.transaction():
            connection.execute("insert into t (id) values (3)")
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    with connection.transaction():
        connection.execute("insert into t (id) values (4)")
        try:
            with connection.transaction():
                connection.execute("insert into t (id) values (4)")
        except psycopg.errors.UniqueViolation:
            pass
    check("transactions", connection.execute("select id from t order by id").fetchall(), [(1,), (2,), (4,)])

    with connection.cursor() as cursor:
        cursor.executemany("insert into t (id, s) values (%s, %s)", [(n, str(n)) for n in range(100, 200)])
        with cursor.copy("copy t (id, s) from stdin") as copy:
            for n in range(200, 300):
                copy.write_row((n, None if n % 2 else f"line\t{n}"))
        with cursor.copy("copy t (id, s) to stdout") as copy:
            copied = {int(line.split("\t")[0]): line.split("\t")[1] for line in b"".join(copy).decode().splitlines()}
    check("copy", (len(copied), copied[200], copied[201]), (203, "line\\t200", "\\N"))

    connection.execute("drop table if exists addresses")
    connection.execute("create table addresses (id int primary key, a inet, c cidr, l inet[])")
    sent = [(1, ipaddress.ip_address("10.0.0.1"), ipaddress.ip_network("10.0.0.0/8"), [ipaddress.ip_address("::1")]),
            (2, ipaddress.ip_interface("10.0.0.1/24"), ipaddress.ip_network("2001:db8::/32"), [])]
    with connection.cursor(binary=True) as cursor:
        cursor.executemany("insert into addresses values (%b, %b, %b, %b)", sent)
        check("addresses", cursor.execute("select * from addresses order by id").fetchall(), sent)
    check("addresses as text", connection.execute("select * from addresses order by id").fetchall(), sent)

    connection.execute("drop table if exists b")
    connection.execute(
        "create table b (id int primary key, s text, n numeric(12, 3), f float8, o bool, y bytea, u uuid, d date,"
        " tz timestamptz, a int[])"
    )
    types = ["int4", "text", "numeric", "float8", "bool", "bytea", "uuid", "date", "timestamptz", "int4[]"]
    written = [
        (
            n, None if n % 3 else f"line\t{n}\n", decimal.Decimal(n) / 8, n / 3, n % 2 == 0, bytes([n % 256, 0]),
            uuid.UUID(int=n), datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc),
            [n, None],
        )
        for n in range(1500)
    ]
    with connection.cursor() as cursor:
        with cursor.copy("copy b from stdin (format binary)") as copy:
            copy.set_types(types)
            for line in written:
                copy.write_row(line)
        check("binary copy in", cursor.statusmessage, "COPY 1500")
        with cursor.copy("copy (select * from b order by id) to stdout (format binary)") as copy:
            copy.set_types(types)
            check("binary copy out", list(copy.rows()), written)
        with cursor.copy("copy b to stdout (format binary)") as copy:
            check("binary copy ends with its mark", b"".join(copy)[-2:], b"\xff\xff")
        check("binary copy out, rows told", cursor.rowcount, 1500)
        with cursor.copy("copy (select * from b where false) to stdout (format binary)") as copy:
            check("binary copy of nothing", b"".join(copy)[:11], b"PGCOPY\n\xff\r\n\0")

        def twice():
            with cursor.copy("copy b (id, n) from stdin (format binary)") as copy:
                copy.set_types(["int4", "numeric"])
                copy.write_row((9999, decimal.Decimal("1.5")))
                copy.write_row((7, None))

        fails("binary copy of a duplicate", "23505", twice)
        check("nothing of it stays", cursor.execute("select count(*) from b").fetchone(), (1500,))

    with psycopg.connect(URL, autocommit=True) as other:
        check("advisory lock", connection.execute("select pg_try_advisory_lock(42)").fetchone(), (True,))
        check("is taken", other.execute("select pg_try_advisory_lock(42)").fetchone(), (False,))
        other.execute("set lock_timeout = '50ms'")
        fails("lock timeout", "55P03", lambda: other.execute("select pg_advisory_lock(42)"))
        shown = other.execute("select classid, objid, mode, granted from pg_locks where locktype = 'advisory'").fetchall()
        check("pg_locks", shown, [(0, 42, "ExclusiveLock", True)])
        check("given up", connection.execute("select pg_advisory_unlock(42)").fetchone(), (True,))
        check("is free", other.execute("select pg_try_advisory_lock(42)").fetchone(), (True,))

    with connection.pipeline():
        cursors = [connection.execute("select %s::int", (n,)) for n in range(20)]
    check("pipeline", [cursor.fetchone()[0] for cursor in cursors], list(range(20)))

    rows = connection.cursor().stream("select id from t order by id")
    check("stream", sum(1 for _ in rows), 203)

    for binary in (False, True):
        with connection.transaction(), connection.cursor("named", binary=binary) as cursor:
            cursor.itersize = 50
            cursor.execute("select id, s from t where id > %s order by id", (99,))
            check(f"named cursor, binary={binary}", cursor.fetchmany(2), [(100, "100"), (101, "101")])
            connection.execute("delete from t where id between 110 and 119")
            check("named cursor goes on over deleted rows", [row[0] for row in cursor], list(range(102, 300)))
            raised = connection.execute("select count(*) from t where id between 110 and 119").fetchone()
            check("deleted", raised, (0,))
            connection.execute("insert into t (id, s) select i, i::text from generate_series(110, 119) i")
    with connection.transaction(), connection.cursor("scrolls", scrollable=True) as cursor:
        cursor.execute("select generate_series(1, 1000)")
        cursor.scroll(500)
        check("scroll", cursor.fetchone(), (501,))
        cursor.scroll(-2)
        check("scroll back", cursor.fetchone(), (500,))
        cursor.scroll(10, mode="absolute")
        check("scroll to", cursor.fetchmany(2), [(11,), (12,)])
    with connection.cursor("held", withhold=True) as cursor:
        cursor.execute("select generate_series(1, 1000)")
        check("held cursor", (cursor.fetchone(), len(cursor.fetchall())), ((1,), 999))
        shown = connection.execute("select name, is_holdable, is_scrollable from pg_cursors").fetchall()
        check("pg_cursors", shown, [("held", True, False)])
    check("closed", connection.execute("select count(*) from pg_cursors").fetchone(), (0,))
    with connection.transaction():
        connection.execute("declare raw binary cursor for values (1::int4, 'x'::text)")
        found = connection.pgconn.exec_(b"fetch all raw")
        check("binary cursor", (found.fformat(0), found.get_value(0, 0), found.get_value(0, 1)), (1, b"\0\0\0\1", b"x"))

with psycopg.connect(URL) as connection:
    threading.Timer(1.0, connection.cancel).start()
    began = time.monotonic()
    fails(
        "cancel",
        "57014",
        lambda: connection.execute(
            "select count(*) from generate_series(1, 1000000) a, generate_series(1, 1000000) b"
        ),
    )
    check("cancel in time", time.monotonic() - began < 60, True)

with psycopg.connect(URL) as connection:
    connection.execute("set statement_timeout = '200ms'")
    connection.commit()
    fails(
        "statement timeout while rows are computed",
        "57014",
        lambda: connection.execute(
            "select count(*) from generate_series(1, 1000000) a, generate_series(1, 1000000) b"
        ),
    )
    connection.rollback()
    check("and a short one ends well", connection.execute("select 1").fetchone(), (1,))

with psycopg.connect(URL) as connection:
    for binary in (False, True):
        cursor = connection.cursor(binary=binary)
        for kind, value in [
            ("int4range", Range(1, 5)),
            ("numrange", Range(decimal.Decimal("1.50"), decimal.Decimal("2.0"), "(]")),
            ("daterange", Range(datetime.date(2024, 1, 1), None)),
            ("tsrange", Range(datetime.datetime(2024, 1, 1, 10), datetime.datetime(2024, 1, 1, 11, 30))),
            ("int8range", Range(empty=True)),
            ("int4multirange", Multirange([Range(1, 3), Range(5, 8)])),
            ("datemultirange", Multirange([])),
        ]:
            name = f"{kind}, {'binary' if binary else 'text'}"
            place = "%b" if binary else "%t"
            row = cursor.execute(f"select {place}::{kind}, array[{place}::{kind}]", (value, value)).fetchone()
            check(name, row, (value, [value]))

with psycopg.connect(URL, autocommit=True) as connection:
    connection.execute("drop table if exists homes; drop type if exists home")
    connection.execute("create type home as (street text, floor int, built date)")
    connection.execute("create table homes (id int primary key, at home, many home[])")
    info = CompositeInfo.fetch(connection, "home")
    register_composite(info, connection)
    one = info.python_type("a, \"b\" (c)", 3, datetime.date(2024, 2, 29))
    none = info.python_type(None, None, None)
    for binary in (False, True):
        place = "%b" if binary else "%t"
        name = f"composite, {'binary' if binary else 'text'}"
        connection.execute("delete from homes")
        connection.execute(f"insert into homes values (1, {place}, {place})", (one, [one, None, none]))
        row = connection.cursor(binary=binary).execute("select at, many from homes").fetchone()
        check(name, row, (one, [one, None, none]))
        found = connection.execute(f"select (at).floor from homes where at = {place}", (one,)).fetchone()
        check(f"{name}, compared", found, (3,))
    with connection.cursor() as cursor:
        with cursor.copy("copy homes (id, at) from stdin") as copy:
            copy.write_row((2, one))
        check("composite, copied", cursor.execute("select at from homes where id = 2").fetchone(), (one,))

with psycopg.connect(URL, autocommit=True) as listener, psycopg.connect(URL) as sender:
    listener.execute("listen news")
    sender.execute("notify news, 'rolled back'")
    sender.rollback()
    with sender.transaction():
        sender.execute("select pg_notify('news', %s)", ("committed",))
        sender.execute("notify news")
        sender.execute("notify news, 'committed'")
    heard = [(n.channel, n.payload, n.pid) for n in listener.notifies(timeout=60, stop_after=2)]
    pid = sender.info.backend_pid
    check("notifications", heard, [("news", "committed", pid), ("news", "", pid)])
    check("the process id", sender.execute("select pg_backend_pid()").fetchone(), (pid,))
    listener.execute("unlisten *")

print("psycopg: all well")
