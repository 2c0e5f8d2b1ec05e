// node-postgres (pg), pg-cursor, pg-query-stream and pg-copy-streams against a running server.
import pg from 'pg';
import Cursor from 'pg-cursor';
import QueryStream from 'pg-query-stream';
import { from as copyFrom, to as copyTo } from 'pg-copy-streams';
import { pipeline } from 'node:stream/promises';
import { Readable, Writable } from 'node:stream';
import { URL, check, fails } from './check.mjs';

const client = new pg.Client({ connectionString: URL });
await client.connect();
await client.query('drop table if exists np_line; drop table if exists np_kinds');
await client.query(`create table np_kinds (
  id serial primary key, b boolean, i2 smallint, i4 integer, i8 bigint, n numeric(20,5), f4 real, f8 double precision,
  t text, v varchar(20), c char(4), y bytea, u uuid, d date, tm time, ts timestamp, tz timestamptz, iv interval,
  j json, jb jsonb, ai int[], at text[], an numeric[], ab boolean[], atz timestamptz[], au uuid[], ajb jsonb[])`);

// Types both ways. node-postgres reads bigint, numeric and date by its own parsers; what it makes of them is PostgreSQL's text.
const values = [
  true, -32768, 2147483647, '9223372036854775807', '-12345.67000', 1.5, 0.1, "tab\t quote' back\\slash æ 🎉", 'short', 'ab', Buffer.from([0, 1, 255]),
  '12345678-1234-5678-1234-567812345678', '2024-02-29', '13:14:15.678', '2024-02-29 23:59:59.123456', new Date('2024-02-29T12:00:00.123Z'),
  '1 year 2 mons 3 days 04:05:06', { a: [1, null, 'x'] }, { b: { c: true } }, [1, null, -3], ['x', null, 'with "quotes", commas', ''], ['1.50', '-2'],
  [true, false], [new Date('2020-01-01T00:00:00Z')], ['00000000-0000-0000-0000-000000000007'], [{ k: 1 }, { k: [2] }],
];
const columns = 'b,i2,i4,i8,n,f4,f8,t,v,c,y,u,d,tm,ts,tz,iv,j,jb,ai,at,an,ab,atz,au,ajb';
const inserted = await client.query(
  `insert into np_kinds (${columns}) values (${values.map((_, i) => `$${i + 1}`)}) returning id`,
  values,
);
check('returning', inserted.rows, [{ id: 1 }]);
check('command', [inserted.command, inserted.rowCount], ['INSERT', 1]);
const expected = {
  id: 1, b: true, i2: -32768, i4: 2147483647, i8: '9223372036854775807', n: '-12345.67000', f4: 1.5, f8: 0.1,
  t: "tab\t quote' back\\slash æ 🎉", v: 'short', c: 'ab  ', y: Buffer.from([0, 1, 255]), u: '12345678-1234-5678-1234-567812345678',
  tm: '13:14:15.678', tz: new Date('2024-02-29T12:00:00.123Z'), j: { a: [1, null, 'x'] }, jb: { b: { c: true } },
  ai: [1, null, -3], at: ['x', null, 'with "quotes", commas', ''], an: [1.5, -2], ab: [true, false], atz: [new Date('2020-01-01T00:00:00Z')],
  au: ['00000000-0000-0000-0000-000000000007'], ajb: [{ k: 1 }, { k: [2] }],
};
const found = (await client.query('select * from np_kinds')).rows[0];
const { d, ts, iv, ...plain } = found;
check('types, text', plain, expected);
check('date', [d.getFullYear(), d.getMonth(), d.getDate()], [2024, 1, 29]);
check('timestamp', [ts.getDate(), ts.getHours(), ts.getMilliseconds()], [29, 23, 123]);
check('interval', { ...iv }, { years: 1, days: 3, hours: 4, minutes: 5, seconds: 6, months: 2 });
const binary = (await client.query({ text: 'select b, i2, i4, i8, f4, f8, t, y, tz, ai from np_kinds', binary: true })).rows[0];
check('types, binary', [binary.b, binary.i2, binary.i4, binary.f4, binary.f8, binary.t, binary.y, binary.tz, binary.ai],
  [true, -32768, 2147483647, 1.5, 0.1, values[7], Buffer.from([0, 1, 255]), new Date('2024-02-29T12:00:00.123Z'), [1, null, -3]]);
await client.query(`insert into np_kinds (${columns}) values (${values.map((_, i) => `$${i + 1}`)})`, values.map(() => null));
const nulls = (await client.query(`select ${columns} from np_kinds where id = 2`)).rows[0];
check('nulls', Object.values(nulls).every((v) => v === null) && Object.keys(nulls).length, 26);
const fields = (await client.query('select * from np_kinds where false')).fields;
check('field types', fields.map((f) => f.dataTypeID),
  [23, 16, 21, 23, 20, 1700, 700, 701, 25, 1043, 1042, 17, 2950, 1082, 1083, 1114, 1184, 1186, 114, 3802, 1007, 1009, 1231, 1000, 1185, 2951, 3807]);
check('field modifiers', [fields[5].dataTypeModifier, fields[9].dataTypeModifier, fields[10].dataTypeModifier, fields[3].columnID],
  [(20 << 16 | 5) + 4, 24, 8, 4]);
check('array of rows', (await client.query({ text: 'select 1 a, 2 a', rowMode: 'array' })).rows, [[1, 2]]);

// Prepared statements: the same name is parsed once, whatever the parameters.
for (let n = 0; n < 12; n += 1) {
  const { rows } = await client.query({ name: 'by id', text: 'select $1::int + i4::bigint as s from np_kinds where id = $2', values: [n, 1] });
  check(`prepared ${n}`, rows, [{ s: String(2147483647 + n) }]);
}
check('any(array)', (await client.query('select id from np_kinds where id = any($1) order by id desc', [[1, 2, 99]])).rows, [{ id: 2 }, { id: 1 }]);
check('several statements', (await client.query('select 1 a; select 2 b')).map((r) => r.rows), [[{ a: 1 }], [{ b: 2 }]]);
await fails('prepared after DDL', '0A000', async () => {
  await client.query({ name: 'star', text: 'select * from np_kinds where id = $1', values: [1] });
  await client.query('alter table np_kinds add column extra int');
  await client.query({ name: 'star', text: 'select * from np_kinds where id = $1', values: [1] });
});

// Errors: codes and the fields applications look at.
const unique = await fails('unique', '23505', () => client.query('insert into np_kinds (id) values (1)'));
check('unique fields', [unique.constraint, unique.table, unique.schema, unique.detail, unique.severity],
  ['np_kinds_pkey', 'np_kinds', 'public', 'Key (id)=(1) already exists.', 'ERROR']);
await client.query('create table np_line (id int primary key, kind int not null references np_kinds, q int check (q > 0))');
const foreign = await fails('foreign key', '23503', () => client.query('insert into np_line values (1, 77, 1)'));
check('foreign key fields', [foreign.constraint, foreign.detail], ['np_line_kind_fkey', 'Key (kind)=(77) is not present in table "np_kinds".']);
check('not null column', (await fails('not null', '23502', () => client.query('insert into np_line values (1, null, 1)'))).column, 'kind');
check('check constraint', (await fails('check', '23514', () => client.query('insert into np_line values (1, 1, 0)'))).constraint, 'np_line_q_check');
check('position', (await fails('undefined column', '42703', () => client.query('select nonsense from np_kinds'))).position, '8');
await fails('undefined table', '42P01', () => client.query('select 1 from nowhere'));
await fails('syntax', '42601', () => client.query('selec 1'));
await fails('integer text', '22P02', () => client.query('select $1::int', ['abc']));
await fails('integer range', '22003', () => client.query('select $1::int', ['3000000000']));
await fails('division', '22012', () => client.query('select 1 / $1::int', [0]));
await fails('too long', '22001', () => client.query('insert into np_kinds (v) values ($1)', ['x'.repeat(21)]));
await fails('parameters missing', '08P01', () => client.query('select $1::int, $2::int', [1]));

// Transactions and savepoints.
await client.query('begin');
await client.query('insert into np_line values (1, 1, 1)');
await client.query('savepoint one');
await fails('in a block', '23505', () => client.query('insert into np_line values (1, 1, 1)'));
await fails('failed block', '25P02', () => client.query('select 1'));
await client.query('rollback to savepoint one');
await client.query('insert into np_line values (2, 1, 2)');
await client.query('release savepoint one');
await client.query('commit');
check('committed', (await client.query('select id from np_line order by id')).rows, [{ id: 1 }, { id: 2 }]);
await client.query('begin isolation level repeatable read read only');
await fails('read only', '25006', () => client.query('delete from np_line'));
await client.query('rollback');
check('isolation', (await client.query('show transaction_isolation')).rows.length, 1);

// Queued queries run in order, each with its own outcome.
const queued = await Promise.allSettled([1, 0, 2].map((n) => client.query('select 10 / $1::int as q', [n])));
check('queued', queued.map((r) => r.value?.rows[0].q ?? r.reason.code), [10, '22012', 5]);

// Portals in pieces, in the extended protocol.
await client.query('begin');
const cursor = client.query(new Cursor('select g from generate_series(1, $1::int) g', [250]));
const pieces = [];
for (;;) {
  const rows = await cursor.read(100);
  if (rows.length === 0) break;
  pieces.push(rows.length);
}
check('pg-cursor pieces', pieces, [100, 100, 50]);
const second = client.query(new Cursor('select id from np_line order by id'));
check('pg-cursor first row', await second.read(1), [{ id: 1 }]);
await second.close();
let sum = 0;
for await (const row of client.query(new QueryStream('select g from generate_series(1, 1000) g', [], { batchSize: 64 }))) sum += row.g;
check('pg-query-stream', sum, 500500);
await client.query('commit');

// COPY both ways.
const lines = Array.from({ length: 2000 }, (_, n) => `${n + 100}\t1\t${n + 1}\n`);
await pipeline(Readable.from(lines), client.query(copyFrom('copy np_line (id, kind, q) from stdin')));
check('copy in', (await client.query('select count(*)::int n, sum(q)::int s from np_line where id >= 100')).rows, [{ n: 2000, s: 2001000 }]);
let out = '';
await pipeline(client.query(copyTo("copy (select id, q from np_line where id < 103 order by id) to stdout with (format csv, header)")),
  new Writable({ write(chunk, _, done) { out += chunk; done(); } }));
check('copy out', out, 'id,q\n1,1\n2,2\n100,1\n101,2\n102,3\n');
await fails('copy in, bad row', '22P02', () => pipeline(Readable.from(['x\ty\tz\n']), client.query(copyFrom('copy np_line from stdin'))));
check('after a failed copy', (await client.query('select 1 one')).rows, [{ one: 1 }]);

// Notices, time-outs and cancellation.
const notices = [];
client.on('notice', (notice) => notices.push([notice.severity, notice.code]));
await client.query('drop table if exists np_never');
check('notice', notices, [['NOTICE', '00000']]);
await client.query("set statement_timeout = '200ms'");
await fails('statement_timeout', '57014', () => client.query('select pg_sleep(30)'));
await client.query('reset statement_timeout');
const other = new pg.Client({ connectionString: URL });
await other.connect();
const sleeping = fails('cancelled', '57014', () => other.query('select pg_sleep(30)'));
await new Promise((resolve) => setTimeout(resolve, 300));
const canceller = new pg.Client({ connectionString: URL });
canceller.cancel(other, other.activeQuery ?? other._activeQuery);
await sleeping;
await other.end();

// Notifications.
const heard = new Promise((resolve) => client.once('notification', resolve));
await client.query('listen np_news');
const sender = new pg.Client({ connectionString: URL });
await sender.connect();
await sender.query('begin; notify np_news, $$rolled back$$; rollback'.replaceAll('$$', "'"));
await sender.query('select pg_notify($1, $2)', ['np_news', 'hello']);
const { channel, payload, processId } = await heard;
check('notification', { channel, payload, processId }, { channel: 'np_news', payload: 'hello', processId: sender.processID });
await sender.end();

// A pool: many clients on one counter.
const pool = new pg.Pool({ connectionString: URL, max: 4 });
await Promise.all(Array.from({ length: 20 }, () => pool.query('update np_line set q = q + 1 where id = 1')));
check('pool', (await pool.query('select q from np_line where id = 1')).rows, [{ q: 21 }]);
const held = await pool.connect();
await held.query("set application_name = 'drivers'");
check('application_name', (await held.query('show application_name')).rows, [{ application_name: 'drivers' }]);
held.release(true);
await pool.end();
await client.query('drop table np_line; drop table np_kinds');
await client.end();
console.log('node-postgres: all ok');
