// TypeORM: synchronize (the second run changes nothing), entities with relations, migrations, the query builder, transactions, optimistic locks.
import 'reflect-metadata';
import { DataSource, EntitySchema, In, IsNull, MoreThan } from 'typeorm';
import { URL, check, fails } from './check.mjs';

const Team = new EntitySchema({
  name: 'Team', tableName: 'to_team',
  columns: {
    id: { type: 'int', primary: true, generated: 'increment' },
    name: { type: 'varchar', length: 40, unique: true },
    budget: { type: 'numeric', precision: 10, scale: 2, default: 0 },
    made: { type: 'timestamptz', createDate: true },
  },
  relations: { people: { type: 'one-to-many', target: 'Person', inverseSide: 'team' } },
});
const Person = new EntitySchema({
  name: 'Person', tableName: 'to_person',
  columns: {
    id: { type: 'uuid', primary: true, generated: 'uuid' },
    name: { type: 'text' },
    age: { type: 'smallint', nullable: true },
    big: { type: 'bigint', nullable: true },
    score: { type: 'double precision', default: 1.5 },
    active: { type: 'boolean', default: true },
    data: { type: 'jsonb', nullable: true },
    tags: { type: 'text', array: true, default: '{}' },
    photo: { type: 'bytea', nullable: true },
    born: { type: 'date', nullable: true },
    wake: { type: 'time', nullable: true },
    version: { type: 'int', version: true },
    changed: { type: 'timestamp', updateDate: true },
    gone: { type: 'timestamptz', deleteDate: true, nullable: true },
  },
  relations: {
    team: { type: 'many-to-one', target: 'Team', joinColumn: { name: 'team_id' }, inverseSide: 'people', onDelete: 'CASCADE', nullable: true },
    skills: { type: 'many-to-many', target: 'Skill', joinTable: { name: 'to_person_skill' } },
  },
  indices: [{ name: 'to_person_name_age', columns: ['name', 'age'] }],
  checks: [{ name: 'to_person_age', expression: '"age" >= 0' }],
});
const Skill = new EntitySchema({ name: 'Skill', tableName: 'to_skill', columns: { id: { type: 'bigint', primary: true, generated: 'identity' }, name: { type: 'varchar', unique: true } } });

class Later1700000000001 {
  name = 'Later1700000000001';
  async up(runner) {
    await runner.query('alter table "to_team" add "motto" character varying(50) not null default \'\'');
    await runner.query('create index "to_team_motto" on "to_team" ("motto")');
  }
  async down(runner) {
    await runner.query('drop index "public"."to_team_motto"');
    await runner.query('alter table "to_team" drop column "motto"');
  }
}
const source = new DataSource({ type: 'postgres', url: URL, entities: [Team, Person, Skill], migrations: [Later1700000000001], migrationsTableName: 'to_migrations', migrationsTransactionMode: 'all' });
await source.initialize();
for (const table of ['to_migrations', 'to_person_skill', 'to_skill', 'to_person', 'to_team']) await source.query(`drop table if exists "${table}"`);
await source.synchronize();
const log = await source.driver.createSchemaBuilder().log();
check('a second synchronize changes nothing', log.upQueries.map((q) => q.query), []);
check('migrations up', (await source.runMigrations()).map((m) => m.name), ['Later1700000000001']);
check('migrations again', (await source.runMigrations()).length, 0);
await source.undoLastMigration();
check('migrations down', (await source.query("select count(*)::int n from information_schema.columns where table_name = 'to_team' and column_name = 'motto'")), [{ n: 0 }]);

const teams = source.getRepository('Team');
const people = source.getRepository('Person');
const skills = source.getRepository('Skill');
const red = await teams.save({ name: 'red', budget: 12.5 });
check('generated key', [red.id, red.made instanceof Date], [1, true]);
const [sql, rust] = await skills.save([{ name: 'sql' }, { name: 'rust' }]);
const ada = await people.save({ name: 'Ada', age: 36, big: '9007199254740993', data: { a: [1] }, tags: ['x', 'y z'], photo: Buffer.from([0, 255]), born: '1815-12-10', wake: '06:30:00', team: red, skills: [sql, rust] });
await people.save([{ name: 'Bob', team: red }, { name: 'Cy', age: 5, skills: [rust] }]);
const back = await people.findOne({ where: { id: ada.id }, relations: { team: true, skills: true }, order: { skills: { id: 'ASC' } } });
check('types', [back.age, back.big, back.score, back.active, back.data, back.tags, back.photo, back.born, back.wake, back.version, back.gone], [36, '9007199254740993', 1.5, true, { a: [1] }, ['x', 'y z'], Buffer.from([0, 255]), '1815-12-10', '06:30:00', 1, null]);
check('relations', [back.team.name, back.team.budget, back.skills.map((s) => s.name)], ['red', '12.50', ['sql', 'rust']]);
check('find options', (await people.find({ where: [{ age: MoreThan(30) }, { name: In(['Cy', 'No']) }], order: { name: 'DESC' } })).map((p) => p.name), ['Cy', 'Ada']);
check('nulls', await people.countBy({ age: IsNull() }), 1);
check('take and skip with joins', (await people.find({ relations: { skills: true }, order: { name: 'ASC' }, take: 2, skip: 1 })).map((p) => [p.name, p.skills.length]), [['Bob', 0], ['Cy', 1]]);
check('query builder', await people.createQueryBuilder('p').leftJoin('p.team', 't').select('t.name', 'team').addSelect('count(*)', 'n').groupBy('t.name').orderBy('t.name', 'ASC', 'NULLS FIRST').getRawMany(), [{ team: null, n: '1' }, { team: 'red', n: '2' }]);
check('json parameter', (await people.createQueryBuilder('p').where("p.data @> :d", { d: JSON.stringify({ a: [1] }) }).getMany()).length, 1);
check('array parameter', (await people.createQueryBuilder('p').where(':tag = any(p.tags)', { tag: 'y z' }).getMany()).length, 1);
back.name = 'Ada L.';
check('version', (await people.save(back)).version, 2);
await people.findOne({ where: { id: ada.id }, lock: { mode: 'optimistic', version: 1 } }).then(() => check('optimistic lock', 'no error', ''), (error) => check('optimistic lock', error.name, 'OptimisticLockVersionMismatchError'));
await fails('unique', '23505', () => teams.insert({ name: 'red' }));
await fails('check', '23514', () => people.insert({ name: 'Neg', age: -1 }));
check('upsert', (await teams.upsert([{ name: 'red', budget: 99 }, { name: 'blue', budget: 1 }], ['name'])).generatedMaps.length, 2);
check('after upsert', (await teams.find({ order: { name: 'ASC' } })).map((t) => [t.name, t.budget]), [['blue', '1.00'], ['red', '99.00']]);
await source.transaction('SERIALIZABLE', async (manager) => {
  await manager.findOne('Team', { where: { name: 'red' }, lock: { mode: 'pessimistic_write' } });
  await manager.increment('Team', { name: 'red' }, 'budget', 1);
  await manager.transaction(async (inner) => { await inner.delete('Team', { name: 'blue' }); throw new Error('no'); }).catch(() => {});
});
check('transaction', (await teams.find({ order: { name: 'ASC' } })).map((t) => t.budget), ['1.00', '100.00']);
await people.softDelete({ name: 'Cy' });
check('soft delete', [await people.count(), await people.count({ withDeleted: true })], [2, 3]);
await teams.delete({ name: 'red' });
check('cascade', [await people.count({ withDeleted: true }), (await source.query('select count(*)::int n from to_person_skill'))[0].n], [1, 1]);

// A changed model: what synchronize alters, and that it alters nothing twice.
const Changed = new EntitySchema({ ...Team.options, columns: { ...Team.options.columns, name: { type: 'varchar', length: 40, nullable: true }, budget: { type: 'numeric', precision: 10, scale: 2, default: 5 }, town: { type: 'text', nullable: true } } });
const second = new DataSource({ type: 'postgres', url: URL, entities: [Changed, Person, Skill] });
await second.initialize();
check('what it will alter', (await second.driver.createSchemaBuilder().log()).upQueries.length > 0, true);
await second.synchronize();
check('nothing twice', (await second.driver.createSchemaBuilder().log()).upQueries.map((q) => q.query), []);
check('the new default', (await second.query('insert into to_team (name) values (null) returning budget, town')), [{ budget: '5.00', town: null }]);
await second.destroy();
for (const table of ['to_migrations', 'to_person_skill', 'to_skill', 'to_person', 'to_team']) await source.query(`drop table "${table}"`);
await source.destroy();
console.log('typeorm: all ok');
