// drizzle-orm: its migrator over a folder of SQL files, the query builder, relations, prepared statements, transactions.
import { mkdtemp, mkdir, writeFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { drizzle } from 'drizzle-orm/node-postgres';
import { migrate } from 'drizzle-orm/node-postgres/migrator';
import * as c from 'drizzle-orm/pg-core';
import { and, asc, avg, count, desc, eq, exists, gt, ilike, inArray, isNull, placeholder, relations, sql, sum } from 'drizzle-orm';
import { URL, check, fails } from './check.mjs';

const author = c.pgTable('dz_author', {
  id: c.serial().primaryKey(),
  name: c.varchar({ length: 60 }).notNull(),
  email: c.text().unique(),
  born: c.date(),
  rating: c.numeric({ precision: 6, scale: 2 }).default('0'),
  links: c.jsonb().$type(),
  tags: c.text().array(),
  key: c.uuid().defaultRandom(),
  at: c.timestamp({ withTimezone: true }).notNull().defaultNow(),
});
const book = c.pgTable('dz_book', {
  id: c.bigint({ mode: 'number' }).primaryKey().generatedAlwaysAsIdentity(),
  author: c.integer().notNull().references(() => author.id, { onDelete: 'cascade' }),
  title: c.text().notNull(),
  pages: c.integer(),
  price: c.doublePrecision(),
  out: c.boolean().notNull().default(false),
  seen: c.time(),
}, (t) => [c.index('dz_book_author').on(t.author), c.uniqueIndex('dz_book_once').on(t.author, t.title)]);
const authorRelations = relations(author, ({ many }) => ({ books: many(book) }));
const bookRelations = relations(book, ({ one }) => ({ writer: one(author, { fields: [book.author], references: [author.id] }) }));

// What drizzle-kit generate writes for this schema, in two steps.
const files = {
  '0000_first': `CREATE TABLE "dz_author" (
	"id" serial PRIMARY KEY NOT NULL,
	"name" varchar(60) NOT NULL,
	"email" text,
	"born" date,
	"rating" numeric(6, 2) DEFAULT '0',
	"links" jsonb,
	"tags" text[],
	"key" uuid DEFAULT gen_random_uuid(),
	CONSTRAINT "dz_author_email_unique" UNIQUE("email")
);
--> statement-breakpoint
CREATE TABLE "dz_book" (
	"id" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "dz_book_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"author" integer NOT NULL,
	"title" text NOT NULL,
	"pages" integer,
	"price" double precision,
	"out" boolean DEFAULT false NOT NULL
);
--> statement-breakpoint
ALTER TABLE "dz_book" ADD CONSTRAINT "dz_book_author_dz_author_id_fk" FOREIGN KEY ("author") REFERENCES "public"."dz_author"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
CREATE INDEX "dz_book_author" ON "dz_book" USING btree ("author");--> statement-breakpoint
CREATE UNIQUE INDEX "dz_book_once" ON "dz_book" USING btree ("author","title");`,
  '0001_second': `ALTER TABLE "dz_author" ADD COLUMN "at" timestamp with time zone DEFAULT now() NOT NULL;--> statement-breakpoint
ALTER TABLE "dz_book" ADD COLUMN "seen" time;--> statement-breakpoint
ALTER TABLE "dz_book" ALTER COLUMN "price" SET DEFAULT 1.5;--> statement-breakpoint
ALTER TABLE "dz_book" ALTER COLUMN "price" DROP DEFAULT;`,
};
const folder = await mkdtemp(join(tmpdir(), 'drizzle-'));
async function write(names) {
  await mkdir(join(folder, 'meta'), { recursive: true });
  for (const name of names) await writeFile(join(folder, `${name}.sql`), files[name]);
  const entries = names.map((tag, idx) => ({ idx, version: '7', when: 1700000000000 + idx, tag, breakpoints: true }));
  await writeFile(join(folder, 'meta', '_journal.json'), JSON.stringify({ version: '7', dialect: 'postgresql', entries }));
}

const pool = new pg.Pool({ connectionString: URL, max: 4 });
const db = drizzle(pool, { schema: { author, book, authorRelations, bookRelations } });
await db.execute(sql`drop schema if exists drizzle cascade`);
await db.execute(sql`drop table if exists dz_book, dz_author`);
await write(['0000_first']);
await migrate(db, { migrationsFolder: folder });
await write(['0000_first', '0001_second']);
await migrate(db, { migrationsFolder: folder });
await migrate(db, { migrationsFolder: folder });
await rm(folder, { recursive: true });
check('migrations', (await db.execute(sql`select count(*)::int n from drizzle.__drizzle_migrations`)).rows, [{ n: 2 }]);

const [one] = await db.insert(author).values({ name: 'Ursula', email: 'u@x', born: '1929-10-21', rating: '9.75', links: { web: ['a'] }, tags: ['sf', 'x,y'] }).returning();
check('insert returning', [one.id, one.rating, one.links, one.tags, one.born, one.at instanceof Date, one.key.length], [1, '9.75', { web: ['a'] }, ['sf', 'x,y'], '1929-10-21', true, 36]);
check('nulls and defaults', (await db.insert(author).values({ name: 'Nobody' }).returning({ email: author.email, rating: author.rating, tags: author.tags })), [{ email: null, rating: '0.00', tags: null }]);
await db.insert(book).values([
  { author: 1, title: 'Dispossessed', pages: 341, price: 9.5 }, { author: 1, title: 'Left Hand', pages: 286, price: 8.25, out: true, seen: '10:11:12' }, { author: 2, title: 'Empty' },
]);
const duplicate = await fails('unique', '23505', () => db.insert(author).values({ name: 'Two', email: 'u@x' }));
check('the cause', duplicate.cause.constraint, 'dz_author_email_unique');
await fails('generated always', '428C9', () => db.execute(sql`insert into dz_book (id, author, title) values (50, 1, 'x')`));
check('where', await db.select({ title: book.title }).from(book).where(and(gt(book.pages, 200), ilike(book.title, '%HAND'))), [{ title: 'Left Hand' }]);
check('join', await db.select({ name: author.name, n: count(book.id), pages: sum(book.pages), mean: avg(book.price) }).from(author)
  .leftJoin(book, eq(book.author, author.id)).groupBy(author.id).orderBy(author.id), [{ name: 'Ursula', n: 2, pages: '627', mean: '8.875' }, { name: 'Nobody', n: 1, pages: null, mean: null }]);
check('exists', await db.select({ id: author.id }).from(author).where(exists(db.select({ x: sql`1` }).from(book).where(and(eq(book.author, author.id), isNull(book.pages))))), [{ id: 2 }]);
check('limit and offset', (await db.select().from(book).orderBy(desc(book.id)).limit(1).offset(1)).map((r) => [r.id, r.out, r.seen]), [[2, true, '10:11:12']]);
const few = db.$with('few').as(db.select({ id: author.id, up: sql`upper(${author.name})`.as('up') }).from(author).where(inArray(author.id, [1, 2])));
check('with', await db.with(few).select({ up: few.up }).from(few).orderBy(asc(few.id)), [{ up: 'URSULA' }, { up: 'NOBODY' }]);
check('relational query', await db.query.author.findMany({
  columns: { name: true }, with: { books: { columns: { title: true, pages: true, out: true }, orderBy: (b, o) => o.desc(b.id) } }, orderBy: (a, o) => o.asc(a.id),
}), [
  { name: 'Ursula', books: [{ title: 'Left Hand', pages: 286, out: true }, { title: 'Dispossessed', pages: 341, out: false }] },
  { name: 'Nobody', books: [{ title: 'Empty', pages: null, out: false }] },
]);
check('relational query, to one', await db.query.book.findFirst({ where: (b, o) => o.eq(b.title, 'Empty'), columns: { id: true }, with: { writer: { columns: { name: true } } } }), { id: 3, writer: { name: 'Nobody' } });
const byId = db.select({ name: author.name }).from(author).where(eq(author.id, placeholder('id'))).prepare('dz_by_id');
for (let n = 0; n < 8; n += 1) check(`prepared ${n}`, (await byId.execute({ id: 1 + (n % 3) })).map((r) => r.name), [['Ursula'], ['Nobody'], []][n % 3]);
check('upsert', await db.insert(author).values({ name: 'Ursula K.', email: 'u@x' }).onConflictDoUpdate({ target: author.email, set: { name: sql`excluded.name` } }).returning({ id: author.id, name: author.name }), [{ id: 1, name: 'Ursula K.' }]);
check('do nothing', (await db.insert(author).values({ name: 'No', email: 'u@x' }).onConflictDoNothing()).rowCount, 0);
check('update returning', await db.update(book).set({ pages: sql`${book.pages} + 1` }).where(eq(book.author, 1)).returning({ pages: book.pages }).then((r) => r.map((x) => x.pages).sort()), [287, 342]);
await db.transaction(async (tx) => {
  await tx.insert(book).values({ author: 2, title: 'Kept' });
  await tx.transaction(async (inner) => {
    await inner.delete(book);
    inner.rollback();
  }).catch(() => {});
  check('savepoint', (await tx.select({ n: count() }).from(book))[0].n, 4);
}, { isolationLevel: 'serializable', accessMode: 'read write' });
await db.transaction(async (tx) => { await tx.delete(book); tx.rollback(); }).catch(() => {});
check('rolled back', await db.$count(book), 4);
check('delete with cascade', [(await db.delete(author).where(eq(author.id, 1))).rowCount, await db.$count(book)], [1, 2]);
await db.execute(sql`drop schema drizzle cascade`);
await db.execute(sql`drop table dz_book, dz_author`);
await pool.end();
console.log('drizzle: all ok');
