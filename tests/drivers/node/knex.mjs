// Knex: migrations up, down and again; the query builder; transactions.
import Knex from 'knex';
import { URL, check, fails } from './check.mjs';

// Migrations as an application writes them, from an object instead of a folder.
const migrations = {
  '001_people': {
    up: (k) => k.schema
      .createTable('kx_person', (t) => {
        t.increments('id');
        t.string('email', 80).notNullable().unique();
        t.text('name').notNullable().index();
        t.integer('age').unsigned();
        t.decimal('balance', 12, 2).notNullable().defaultTo(0);
        t.boolean('active').notNullable().defaultTo(true);
        t.jsonb('profile').defaultTo('{}');
        t.uuid('token').defaultTo(k.raw('gen_random_uuid()'));
        t.specificType('tags', 'text[]');
        t.binary('photo');
        t.date('born');
        t.timestamps(true, true);
      })
      .createTable('kx_order', (t) => {
        t.bigIncrements('id');
        t.integer('person_id').notNullable().references('id').inTable('kx_person').onDelete('CASCADE');
        t.integer('position').notNullable();
        t.string('state').notNullable().defaultTo('new');
        t.unique(['person_id', 'position'], { indexName: 'kx_order_once' });
        t.index(['state', 'id']);
        t.comment('what people ordered');
      }),
    down: (k) => k.schema.dropTable('kx_order').dropTable('kx_person'),
  },
  '002_change': {
    up: (k) => k.schema.alterTable('kx_person', (t) => {
      t.string('phone');
      t.renameColumn('age', 'years');
      t.text('email').notNullable().alter();
      t.dropColumn('photo');
      t.setNullable('name');
    }),
    down: (k) => k.schema.alterTable('kx_person', (t) => {
      t.dropColumn('phone');
      t.renameColumn('years', 'age');
      t.string('email', 80).notNullable().alter();
      t.binary('photo');
      t.dropNullable('name');
    }),
  },
};
const migrationSource = {
  getMigrations: async () => Object.keys(migrations),
  getMigrationName: (name) => name,
  getMigration: async (name) => migrations[name],
};
const knex = Knex({ client: 'pg', connection: URL, pool: { min: 0, max: 4 }, migrations: { migrationSource, tableName: 'kx_migrations' } });

for (const table of ['kx_order', 'kx_person', 'kx_migrations', 'kx_migrations_lock']) await knex.schema.dropTableIfExists(table);
check('latest', await knex.migrate.latest(), [1, ['001_people', '002_change']]);
check('latest again', (await knex.migrate.latest())[1], []);
check('version', await knex.migrate.currentVersion(), '002');
check('rollback', await knex.migrate.rollback(), [1, ['002_change', '001_people']]);
check('gone', await knex.schema.hasTable('kx_person'), false);
check('up, one by one', [(await knex.migrate.up())[1], (await knex.migrate.up())[1]], [['001_people'], ['002_change']]);
check('has', [await knex.schema.hasTable('kx_person'), await knex.schema.hasColumn('kx_person', 'years'), await knex.schema.hasColumn('kx_person', 'age')], [true, true, false]);

const info = await knex('kx_person').columnInfo();
check('columnInfo', Object.fromEntries(Object.entries(info).map(([name, c]) => [name, [c.type, c.maxLength, c.nullable, c.defaultValue]])), {
  id: ['integer', null, false, "nextval('kx_person_id_seq'::regclass)"],
  email: ['text', null, false, null],
  name: ['text', null, true, null],
  years: ['integer', null, true, null],
  balance: ['numeric', null, false, "'0'::numeric"],
  active: ['boolean', null, false, 'true'],
  profile: ['jsonb', null, true, "'{}'::jsonb"],
  token: ['uuid', null, true, 'gen_random_uuid()'],
  tags: ['ARRAY', null, true, null],
  born: ['date', null, true, null],
  created_at: ['timestamp with time zone', null, false, 'CURRENT_TIMESTAMP'],
  updated_at: ['timestamp with time zone', null, false, 'CURRENT_TIMESTAMP'],
  phone: ['character varying', 255, true, null],
});

const [ada] = await knex('kx_person')
  .insert({ email: 'ada@x', name: 'Ada', years: 36, balance: '12.50', tags: ['a', 'b c'], profile: { lang: ['en'] }, born: '1815-12-10' })
  .returning(['id', 'balance', 'tags', 'profile', 'active']);
check('insert returning', ada, { id: 1, balance: '12.50', tags: ['a', 'b c'], profile: { lang: ['en'] }, active: true });
check('batchInsert', (await knex.batchInsert('kx_person', Array.from({ length: 250 }, (_, n) => ({ email: `p${n}@x`, name: `P ${n % 10}`, years: n % 50, balance: n })), 100).returning('id')).length, 250);
await fails('unique', '23505', () => knex('kx_person').insert({ email: 'ada@x', name: 'again' }));
const merged = await knex('kx_person').insert({ email: 'ada@x', name: 'Countess' }).onConflict('email').merge(['name']).returning(['id', 'name', 'years']);
check('on conflict merge', merged, [{ id: 1, name: 'Countess', years: 36 }]);
check('on conflict ignore', await knex('kx_person').insert({ email: 'ada@x', name: 'no' }).onConflict('email').ignore().returning('id'), []);
await knex('kx_order').insert([1, 2, 3].map((position) => ({ person_id: 1, position })));
await knex('kx_order').insert({ person_id: 3, position: 1, state: 'paid' });
check('join, group, having', await knex('kx_person as p').join('kx_order as o', 'o.person_id', 'p.id').groupBy('p.id', 'p.name')
  .havingRaw('count(*) > ?', [1]).select('p.name').count('o.id as n').sum('o.position as s'), [{ name: 'Countess', n: '3', s: '6' }]);
check('left join', await knex('kx_person as p').leftJoin('kx_order as o', 'o.person_id', 'p.id').whereNull('o.id').count('* as n').first(), { n: '249' });
check('where forms', (await knex('kx_person').where('years', '>', 45).andWhere((w) => w.whereIn('name', ['P 8', 'P 9']).orWhereILike('email', 'P46@%'))
  .orderBy([{ column: 'years', order: 'desc' }, 'id']).limit(3).offset(1).select('email')).map((r) => r.email), ['p99@x', 'p149@x', 'p199@x']);
check('json', await knex('kx_person').whereJsonSupersetOf('profile', { lang: ['en'] }).pluck('id'), [1]);
check('exists', await knex('kx_person as p').whereExists(knex('kx_order as o').whereRaw('o.person_id = p.id').where('state', 'paid')).pluck('id'), [3]);
check('with, union', await knex.with('few', knex('kx_person').where('id', '<', 4).select('id')).from('few').union(knex.select(knex.raw('?::int', [1000]))).orderBy('id').pluck('id'), [1, 2, 3, 1000]);
check('window', (await knex('kx_order').select('id').rowNumber('r', (w) => w.partitionBy('person_id').orderBy('position', 'desc')).orderBy('id')).map((r) => r.r), ['3', '2', '1', '1']);
check('update returning', await knex('kx_person').where('id', 1).increment('years', 2).update({ phone: null }, ['years']), [{ years: 38 }]);
check('update from subquery', await knex('kx_person').whereIn('id', knex('kx_order').select('person_id')).update({ active: false }), 2);
check('distinct on', (await knex('kx_order').distinctOn('person_id').orderBy(['person_id', { column: 'position', order: 'desc' }]).select('person_id', 'position')), [{ person_id: 1, position: 3 }, { person_id: 3, position: 1 }]);

await knex.transaction(async (trx) => {
  await trx('kx_order').where('person_id', 1).forUpdate().select('id');
  await trx('kx_order').where({ person_id: 1, position: 1 }).update({ state: 'sent' });
  await trx.transaction(async (inner) => {
    await inner('kx_order').del();
    throw new Error('no');
  }).catch((error) => check('nested transaction', error.message, 'no'));
});
check('after the transaction', await knex('kx_order').orderBy('id').pluck('state'), ['sent', 'new', 'new', 'paid']);
await knex.transaction(async (trx) => {
  await trx('kx_order').del();
  await trx.rollback(new Error('back'));
}).catch((error) => check('rollback', error.message, 'back'));
check('isolation level', await knex.transaction((trx) => trx.raw('show transaction_isolation').then((r) => r.rows), { isolationLevel: 'repeatable read' }), [{ transaction_isolation: 'repeatable read' }]);
check('cascade', [await knex('kx_person').where('id', 1).del(), Number((await knex('kx_order').count('* as n').first()).n)], [1, 1]);
let streamed = 0;
for await (const row of knex('kx_person').select('id').stream({ batchSize: 50 })) streamed += row.id > 0 ? 1 : 0;
check('stream', streamed, 250);
await knex('kx_order').truncate();
check('truncate', await knex('kx_order').count('* as n').first(), { n: '0' });
await knex.schema.createView('kx_view', (view) => { view.columns(['id', 'email']); view.as(knex('kx_person').select('id', 'email').where('years', '>', 48)); });
check('view', (await knex('kx_view').count('* as n').first()).n, '5');
await knex.schema.dropView('kx_view');
await fails('time-out', 'KnexTimeoutError: Defined query timeout of 200ms exceeded when running query.', () => knex.raw('select pg_sleep(20)').timeout(200, { cancel: true }));
check('rollback all', (await knex.migrate.rollback(undefined, true))[1].length, 2);
await knex.schema.dropTable('kx_migrations').dropTable('kx_migrations_lock');
await knex.destroy();
console.log('knex: all ok');
