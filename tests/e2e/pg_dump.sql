-- What tests/e2e/pg_dump.sh makes on PostgreSQL, dumps and loads.
CREATE SCHEMA shop;
COMMENT ON SCHEMA shop IS 'the shop''s';
CREATE TYPE shop.mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE shop.customer (
  id integer GENERATED ALWAYS AS IDENTITY (START WITH 10 INCREMENT BY 5) PRIMARY KEY,
  name text NOT NULL, email varchar(80) UNIQUE, born date, mood shop.mood DEFAULT 'ok',
  full_name text GENERATED ALWAYS AS (upper(name)) STORED,
  CONSTRAINT name_there CHECK (length(name) > 0));
COMMENT ON TABLE shop.customer IS 'who buys';
COMMENT ON COLUMN shop.customer.email IS 'where to';
COMMENT ON CONSTRAINT name_there ON shop.customer IS 'no empty ones';
CREATE TABLE shop.orders (
  id bigserial PRIMARY KEY,
  customer integer NOT NULL REFERENCES shop.customer ON DELETE CASCADE ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED,
  placed timestamptz DEFAULT now(), total numeric(12,2) DEFAULT 0.00 CHECK (total >= 0), note text,
  tags text[], extra jsonb, raw bytea, u uuid, dur interval, f double precision, r real, b boolean, t time, c char(4), s smallint);
CREATE INDEX orders_customer ON shop.orders (customer, placed DESC);
CREATE TABLE public.kinds (a int, b int, PRIMARY KEY (a, b));
CREATE TABLE public.flags (f bit(4) DEFAULT B'0011' PRIMARY KEY, m bit varying(9) DEFAULT X'F', l bit(3)[], w varbit CHECK (w <> B'0'), v "bit");
CREATE TABLE public.spans (r int4range DEFAULT '[1,5]' PRIMARY KEY, n numrange CHECK (NOT isempty(n)), t tsrange, m datemultirange DEFAULT datemultirange(daterange('2020-01-01', '2020-01-05')), l int8range[]);
CREATE INDEX ON public.spans (n DESC, (lower(r)));
CREATE VIEW public.overlapping AS SELECT r * '[2,9)' AS a, range_merge(m) AS b, n @> 1.5 AS c FROM public.spans WHERE r && '[3,8)' OR upper_inf(t);
CREATE VIEW public.masked AS SELECT f & B'0110' AS a, m || B'1' AS b, B'101' AS c FROM public.flags WHERE f <> B'1111';
CREATE TABLE public.nopk (a text, b text);
CREATE TABLE public.kid (id serial, a int, b int, FOREIGN KEY (a, b) REFERENCES public.kinds (a, b) MATCH FULL ON DELETE SET NULL);
CREATE SEQUENCE shop.free AS smallint MINVALUE -5 MAXVALUE 100 START 7 INCREMENT 3 CYCLE CACHE 4;
CREATE VIEW shop.big AS SELECT o.id, c.name, o.total FROM shop.orders o JOIN shop.customer c ON c.id = o.customer WHERE o.total > 10 ORDER BY o.id;
CREATE VIEW public.counts AS SELECT count(*) AS n, sum(total) AS s FROM shop.orders;
COMMENT ON VIEW shop.big IS 'large ones';
INSERT INTO shop.customer (name, email, born, mood) VALUES ('Ann', 'ann@x', '1990-02-03', 'happy'), ('Bob''s', NULL, NULL, NULL), (E'tab\tnew\nline\\', 'c@x', '0044-03-15 BC', 'sad');
INSERT INTO shop.orders (customer, placed, total, note, tags, extra, raw, u, dur, f, r, b, t, c, s)
 SELECT 10 + 5 * (i % 3), '2024-01-01 00:00:00+00'::timestamptz + i * interval '1 hour', i * 1.25, CASE WHEN i % 2 = 0 THEN 'n' || i END, ARRAY['a', 'b,"c', NULL], jsonb_build_object('i', i), decode('00ff', 'hex'), '00000000-0000-0000-0000-000000000001', interval '1 day 02:03:04.5', i / 3.0, 1.5, i % 2 = 0, '12:34:56.789', 'ab', i FROM generate_series(1, 200) i;
INSERT INTO kinds VALUES (1, 1), (1, 2);
INSERT INTO kid (a, b) VALUES (1, 2), (NULL, NULL);
INSERT INTO spans (n) VALUES ('[1.0,2.50)');
INSERT INTO spans SELECT int4range(i, i * 2), numrange(i, NULL, '()'), tsrange('2020-01-01 10:00', CASE WHEN i < 9 THEN timestamp '2020-01-02' END), '{[2020-01-01,2020-01-03],[2021-01-01,)}', ARRAY[int8range(i, i), NULL] FROM generate_series(4, 12) i;
INSERT INTO flags (w) VALUES (NULL);
INSERT INTO flags SELECT i::bit(4), i::bit(5)::varbit, ARRAY[B'101', NULL], substring(B'101100111000' FROM 1 FOR i), substring(B'0011' FROM 1 FOR i) FROM generate_series(4, 12) i;
INSERT INTO nopk VALUES ('', NULL), ('x', E'\\N');
SELECT setval('shop.free', 13);
