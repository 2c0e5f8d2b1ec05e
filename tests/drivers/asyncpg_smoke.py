"""asyncpg against a running node: binary types, portals, COPY, prepared statements, savepoints, pools.

Usage: asyncpg_smoke.py HOST PORT USER DATABASE. Exits non-zero on the first mismatch.
"""

import asyncio
import datetime
import decimal
import sys
import uuid

import asyncpg

HOST, PORT, USER, DATABASE = sys.argv[1:5]


def check(name, found, expected):
    if found != expected:
        sys.exit(f"FAILED {name}\nexpected: {expected!r}\nfound:    {found!r}")
    print("ok", name)


async def fails(name, kind, call):
    try:
        await call
    except kind:
        print("ok", name)
    else:
        sys.exit(f"FAILED {name}: no error")


async def main():
    connection = await asyncpg.connect(host=HOST, port=int(PORT), user=USER, database=DATABASE, ssl=False)
    check("server version", connection.get_server_version().major, 15)
    await connection.execute("drop table if exists kinds")
    await connection.execute(
        "create table kinds (id serial primary key, j jsonb, u uuid, ts timestamptz, d date, a int[], t text[], n numeric, b bytea, f float8, i interval)"
    )
    row = (
        '{"a": 1}', uuid.UUID(int=7), datetime.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=datetime.timezone.utc), datetime.date(1999, 12, 31),
        [1, None, 3], ["x", None, "æ"], decimal.Decimal("-12.340"), b"\x00\x01", 1.25, datetime.timedelta(days=1, seconds=2),
    )
    key = await connection.fetchval(
        "insert into kinds (j, u, ts, d, a, t, n, b, f, i) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) returning id", *row
    )
    check("types", tuple(await connection.fetchrow("select j, u, ts, d, a, t, n, b, f, i from kinds where id = $1", key)), row)
    await connection.executemany("insert into kinds (a) values ($1)", [([n],) for n in range(10)])
    check("executemany", await connection.fetchval("select count(*) from kinds"), 11)
    copied = await connection.copy_records_to_table("kinds", records=[(100 + n, decimal.Decimal(n)) for n in range(50)], columns=["id", "n"])
    check("copy", copied, "COPY 50")
    statement = await connection.prepare("select id from kinds where id = any($1::int[]) order by id")
    check("prepared", [r["id"] for r in await statement.fetch([149, 100, 7000])], [100, 149])
    check("parameters", [p.name for p in statement.get_parameters()], ["int4[]"])
    async with connection.transaction():
        seen = [record["g"] async for record in connection.cursor("select generate_series(1, 200) g", prefetch=30)]
        check("portal in pieces", seen, list(range(1, 201)))
        portal = await connection.cursor("select id from kinds order by id desc")
        check("fetch", [r["id"] for r in await portal.fetch(2)], [149, 148])
        try:
            async with connection.transaction():
                await connection.execute("insert into kinds (id) values (5000)")
                raise KeyError
        except KeyError:
            pass
    check("savepoint", await connection.fetchval("select count(*) from kinds where id = 5000"), 0)
    async with connection.transaction():
        # MOVE is sent as a query string that names the portal.
        portal = await connection.cursor("select i from generate_series(1, 9) i")
        check("portal", [row["i"] for row in await portal.fetch(2)], [1, 2])
        check("portal moved", await portal.forward(3), 3)
        check("portal again", [row["i"] for row in await portal.fetch(9)], [6, 7, 8, 9])
        fresh = await connection.cursor("select i from generate_series(1, 9) i")
        check("portal moved at first", await fresh.forward(8), 8)
        check("portal at its end", [row["i"] for row in await fresh.fetch(9)], [9])
    await connection.execute("create schema tenant; create table tenant.only_there (v timestamptz); insert into tenant.only_there values ('2024-01-01 00:00+00')")
    async with connection.transaction():
        # Each by the extended protocol: what is set holds when the next statement is parsed, and when its values are read.
        await connection.fetchval("select set_config($1, $2, true)", "search_path", "tenant")
        await connection.fetchval("select set_config($1, $2, true)", "TimeZone", "Asia/Tokyo")
        check("set_config", await connection.fetchval("select v::text from only_there"), "2024-01-01 09:00:00+09")
    check("set_config was local", await connection.fetchval("show search_path"), '"$user", public')
    for kind, value in [
        ("int4range", asyncpg.Range(1, 5)),
        ("int8range", asyncpg.Range(None, 5, upper_inc=False)),
        ("numrange", asyncpg.Range(decimal.Decimal("1.50"), decimal.Decimal("2.0"), lower_inc=False, upper_inc=True)),
        ("daterange", asyncpg.Range(datetime.date(2024, 1, 1), datetime.date(2024, 2, 1))),
        ("tsrange", asyncpg.Range(datetime.datetime(2024, 1, 1, 10), None)),
        ("numrange", asyncpg.Range(empty=True)),
        ("int4multirange", [asyncpg.Range(1, 3), asyncpg.Range(5, 8)]),
        ("nummultirange", []),
    ]:
        check(kind, await connection.fetchval(f"select $1::{kind}", value), value)
        if "multi" not in kind:
            check(f"{kind}[]", await connection.fetchval(f"select $1::{kind}[]", [value, None]), [value, None])
    check("range of a parameter", await connection.fetchval("select $1::int4range @> $2::int4", asyncpg.Range(1, 5), 4), True)
    await connection.execute("drop type if exists spot")
    await connection.execute("create type spot as (name text, x int, feels float8[])")
    spot = ("here", None, [1.5, None])
    check("composite", tuple(await connection.fetchval("select $1::spot", spot)), spot)
    many = await connection.fetchval("select $1::spot[]", [spot, None, (None, 2, [])])
    check("composite[]", [item and tuple(item) for item in many], [spot, None, (None, 2, [])])
    check("field of a parameter", await connection.fetchval("select ($1::spot).name", spot), "here")
    await fails("unique", asyncpg.UniqueViolationError, connection.execute("insert into kinds (id) values (100)"))
    await fails("cancelled by a time-out", asyncio.TimeoutError, connection.execute("select pg_sleep(60)", timeout=0.2))
    check("after the time-out", await connection.fetchval("select 1"), 1)
    heard = asyncio.Queue()
    await connection.add_listener("news", lambda one, pid, channel, payload: heard.put_nowait((pid, channel, payload)))
    sender = await asyncpg.connect(host=HOST, port=int(PORT), user=USER, database=DATABASE, ssl=False)
    await sender.execute("select pg_notify('news', $1)", "from another")
    check("notification while idle", await heard.get(), (sender.get_server_pid(), "news", "from another"))
    await connection.execute("notify news, 'own'")
    check("own notification", await heard.get(), (connection.get_server_pid(), "news", "own"))
    await sender.close()
    await connection.execute("set application_name = 'left behind'")
    await connection.reset()
    check("reset", await connection.fetchval("show application_name"), "")
    await connection.close()

    async with asyncpg.create_pool(host=HOST, port=int(PORT), user=USER, database=DATABASE, ssl=False, min_size=2, max_size=4) as pool:
        async def add(n):
            async with pool.acquire() as one, one.transaction():
                await one.execute("update kinds set n = coalesce(n, 0) + $1 where id = 100", decimal.Decimal(n))

        await asyncio.gather(*[add(n) for n in range(20)])
        check("pool", await pool.fetchval("select n from kinds where id = 100"), decimal.Decimal(190))
    print("asyncpg: all ok")


asyncio.run(main())
