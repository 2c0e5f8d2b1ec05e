CREATE SCHEMA "Odd Schema";
CREATE TYPE mood AS ENUM ('sad', 'it''s ok', 'happy');
CREATE TYPE spot AS (x integer, "Y axis" numeric(6,2), feel mood);
CREATE TYPE "Odd Schema".route AS (name varchar(20), begin spot, stops spot[]);
CREATE SEQUENCE counter AS integer INCREMENT BY 5 MINVALUE 10 MAXVALUE 1000 START 20 CACHE 1 CYCLE;
CREATE SEQUENCE untouched;
CREATE TABLE parent (
    a integer NOT NULL, b text NOT NULL, note varchar(20) DEFAULT 'none', PRIMARY KEY (a, b), UNIQUE (note)
);
CREATE TABLE "Odd Schema"."select" (
    "Id" bigint GENERATED ALWAYS AS IDENTITY (INCREMENT BY 10 START WITH 100) PRIMARY KEY,
    "from" text DEFAULT 'it''s', pa integer, pb text,
    FOREIGN KEY (pa, pb) REFERENCES parent ON DELETE SET NULL ON UPDATE CASCADE
);
CREATE TABLE things (
    id serial PRIMARY KEY, t text, n numeric(12,3), m numeric, f double precision, r real, b bytea, d date, ts timestamp, tz timestamptz, i interval,
    u uuid, j json, jb jsonb, ai integer[], at text[], bo boolean, c char(5), s smallint, big bigint, v varchar(10), tm time, feel mood DEFAULT 'happy',
    flags bit(4) DEFAULT B'0101', mask bit varying(9) DEFAULT X'0F', loose "bit", many bit(2)[] DEFAULT '{10,NULL}',
    held int4range DEFAULT '[1,5]', prices nummultirange DEFAULT '{[1.50,2.0),(3,)}', booked tstzrange[] DEFAULT ARRAY[tstzrange('2024-01-01 00:00+00', NULL)],
    CONSTRAINT positive CHECK (s > 0 AND (s < 100 OR t IS NOT NULL)), parent integer REFERENCES things
);
CREATE TABLE empty_one (x integer);
CREATE TABLE trips (id integer PRIMARY KEY, way "Odd Schema".route, spots spot[], CHECK (((way).begin).x IS DISTINCT FROM 7));
INSERT INTO trips VALUES (1, ROW('a "b", c', ROW(1, 2.5, 'it''s ok'), ARRAY[ROW(3, NULL, NULL)::spot]), '{"(1,2,sad)",NULL}'), (2, NULL, '{}');
CREATE TABLE computed (a integer PRIMARY KEY, b integer GENERATED ALWAYS AS (a * 2 + 1) STORED, c text);
CREATE TABLE round_a (id integer PRIMARY KEY, b integer);
CREATE TABLE round_b (id integer PRIMARY KEY, a integer REFERENCES round_a);
ALTER TABLE round_a ADD CONSTRAINT to_b FOREIGN KEY (b) REFERENCES round_b DEFERRABLE INITIALLY DEFERRED;
CREATE INDEX things_t ON things (t DESC, n);
CREATE UNIQUE INDEX things_u ON things (u);
CREATE INDEX "Odd Index" ON "Odd Schema"."select" ("from");
CREATE VIEW rich AS SELECT id, t, n FROM things WHERE n > 10;
CREATE VIEW "Odd Schema".richest (who, much) AS SELECT t, max(n) FROM public.rich GROUP BY t;
COMMENT ON TABLE things IS 'all that is there; it''s much';
COMMENT ON COLUMN things.t IS E'a\\b';
COMMENT ON VIEW rich IS 'a view';
COMMENT ON INDEX things_t IS 'an index';
COMMENT ON SCHEMA "Odd Schema" IS 'odd';
COMMENT ON TYPE mood IS 'a mood';
COMMENT ON SEQUENCE counter IS 'a sequence';
INSERT INTO parent VALUES (1, 'x', NULL), (2, E'tab\there', 'two');
INSERT INTO "Odd Schema"."select" ("from", pa, pb) VALUES (DEFAULT, 1, 'x'), (NULL, NULL, NULL), (E'line\nbreak\\', 2, E'tab\there'), ('\.', 1, 'x');
INSERT INTO things (t, n, m, f, r, b, d, ts, tz, i, u, j, jb, ai, at, bo, c, s, big, v, tm, feel) VALUES
 ('ä€😀', 12.5, 123456789012345678901234567890.123, 'NaN', 'Infinity', '\x00ff', '2024-02-29', '2024-01-02 03:04:05.678901', '2024-01-02 03:04:05+02',
  '1 year 2 days 03:04:05', '11111111-2222-3333-4444-555555555555', '{"a": [1, 2]}', '{"b": null}', '{1,NULL,3}', '{"a b","c,d",NULL,"e\"f"}', true, 'ab', 5, -9223372036854775808, 'v', '12:34:56.5', 'it''s ok'),
 (NULL, NULL, NULL, 0.1, 1e-30, '', '-infinity', 'infinity', '0044-03-15 BC', '-1 mon', NULL, 'null', '[]', '{}', '{}', false, '', 1, 0, '', '24:00', NULL),
 (E'\\N', 0.001, 'NaN', -0.0, 3.4e38, '\x5c4e', '4713-01-01 BC', NULL, NULL, '00:00:00.000001', NULL, '"\u00e4"', '"x\\y"', NULL, NULL, NULL, NULL, 99, NULL, NULL, NULL, 'sad');
UPDATE things SET parent = 1 WHERE id = 2;
UPDATE things SET flags = B'1000', mask = '', loose = B'110', many = '{01}', held = 'empty', prices = '{}', booked = '{NULL,empty}' WHERE t IS NULL;
INSERT INTO round_a VALUES (1, NULL); INSERT INTO round_b VALUES (1, 1); UPDATE round_a SET b = 1;
SELECT nextval('counter'), nextval('counter');
INSERT INTO computed (a, c) VALUES (3, 'x'), (-4, NULL);

-- Rows that policies hide: the dump has them all, and hides them again where it is restored.
CREATE TABLE secured (id integer PRIMARY KEY, who text, n integer);
INSERT INTO secured VALUES (1, 'a', 1), (2, 'b', 2);
CREATE POLICY "own rows" ON secured USING (who = current_user) WITH CHECK (n > 0);
CREATE POLICY narrow ON secured AS RESTRICTIVE FOR UPDATE TO PUBLIC USING (n < (SELECT max(x.a) FROM parent x) + 100);
CREATE POLICY added ON secured FOR INSERT WITH CHECK (true);
ALTER TABLE secured ENABLE ROW LEVEL SECURITY;
ALTER TABLE secured FORCE ROW LEVEL SECURITY;
CREATE VIEW seen_by_whom_asks WITH (security_invoker = true) AS SELECT id, n FROM secured;
