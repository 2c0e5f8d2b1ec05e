-- Statements that stopped or killed a node, or could: each must end within half a second of every way to end it,
-- hold up nobody meanwhile, and leave the process alive.
--
-- One statement a block; a block begins with a line of two dashes, `name:` and what it is, and ends at the next one. In its text
--   {{N|text}}     stands for the text N times;
--   {{A..B|text}}  for the text once for each number from A to B, `#` being the number and `#-` the one before.
-- Read by tests/e2e/stops_nothing.rs and crates/sql/tests/hostile.

-- name: recursive with for update
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5 FOR UPDATE) SELECT * FROM r

-- name: 5000 branches of union all
SELECT count(*) FROM (SELECT 1 {{5000|UNION ALL SELECT 1 }}) s

-- name: 5000 intersects
SELECT count(*) FROM (SELECT 1 {{5000|INTERSECT SELECT 1 }}) s

-- name: chain of 1000 common table expressions
WITH c0 AS (SELECT 1 AS n){{1..1000|, c# AS (SELECT 1 AS n UNION ALL SELECT n FROM c#-)}} SELECT count(*) FROM c1000

-- name: common table expressions that each use the one before twice
WITH c0 AS (SELECT 1 AS n){{1..16|, c# AS (SELECT n FROM c#- UNION ALL SELECT n FROM c#-)}} SELECT count(*) FROM c16

-- name: array of 100 dimensions
SELECT {{100|ARRAY[}}1{{100|]}}

-- name: array of 50 dimensions
SELECT {{50|ARRAY[}}1{{50|]}}

-- name: row of rows
SELECT {{30|ROW(}}1{{30|)}}

-- name: series to NaN
SELECT count(*) FROM generate_series(0::numeric, 'nan')

-- name: power of a number
SELECT 10::numeric ^ 131000

-- name: power with a fraction
SELECT 2.5::numeric ^ 300000.5

-- name: exponential of a number
SELECT exp(250000.0::numeric)

-- name: root of a large number
SELECT sqrt(10::numeric ^ 130000)

-- name: product of long numbers
SELECT count(*) FROM generate_series(1, 1000000) i WHERE (repeat('9', 100000)::numeric * repeat('9', 100000)::numeric) > i

-- name: regexp_replace on 40 MB
SELECT length(regexp_replace(repeat('ab', 20000000), '(a|b)', 'x', 'g'))

-- name: regular expression of nested repeats
SELECT repeat('a', 5000) ~ '((a{1,50}){1,50}){1,10}b'

-- name: template of 10 MB
SELECT length(to_char(now(), repeat('YYYY-', 2000000)))

-- name: overlap of two arrays
SELECT array(SELECT i FROM generate_series(1, 40000) i) && array(SELECT -i FROM generate_series(1, 40000) i)

-- name: nested loop join with a filter
SELECT count(*) FROM generate_series(1, 50000) a(x), generate_series(1, 50000) b(y) WHERE (x::bigint * y) % 1000003 = 7

-- name: replace on 30 MB
SELECT length(replace(repeat('a', 30000000), 'a', 'bb'))

-- name: string_agg of 5 million
SELECT length(string_agg(i::text, ',')) FROM generate_series(1, 5000000) i

-- name: jsonb_agg of 1 million
SELECT length(jsonb_agg(i)::text) FROM generate_series(1, 1000000) i

-- name: list of 65535 constants
SELECT count(*) FROM generate_series(1, 100000) i WHERE i IN ({{65534|1,}}0)

-- name: list of 4000 constants
SELECT count(*) FROM generate_series(1, 100000) i WHERE i + 0 IN ({{1..4000|#,}}0)

-- name: 100000 type modifiers
SELECT 1::int{{100000|[]}}

-- name: chain of 20000 concatenations
SELECT count({{20000|i || }}'x') FROM generate_series(1, 1000) i

-- name: text cut at 50 million commas
SELECT cardinality(string_to_array(repeat(',', 50000000), ','))

-- name: 40 MB as jsonb
SELECT length((('[' || repeat('1,', 20000000) || '1]')::jsonb)::text)

-- name: 40 nested parentheses
SELECT {{40|(}}true AND false{{40|)}}

-- name: 1000 comparisons
SELECT true {{1000|AND 1 = 1 }}

-- name: 200 times not
SELECT {{200|NOT }}true

-- name: 200 times case
SELECT {{200|CASE WHEN true THEN }}1{{200| END}}

-- name: values of a million rows
SELECT count(*) FROM (VALUES (0){{1..1000000|, (#)}}) v

-- name: 70000 columns
SELECT 1{{69999|,1}}

-- name: endless recursion
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r

-- name: cross join of series
SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b

-- name: sort of a cross join
SELECT x FROM (SELECT md5(a::text || b::text) AS x FROM generate_series(1, 10000) a, generate_series(1, 10000) b) s ORDER BY x LIMIT 1

-- name: sum over a moving frame
SELECT max(s) FROM (SELECT sum(i) OVER (ORDER BY i ROWS BETWEEN 50000 PRECEDING AND 50000 FOLLOWING) AS s FROM generate_series(1, 200000) i) q

-- name: subquery for each row
SELECT count(*) FROM generate_series(1, 20000) a WHERE (SELECT max(b * a) FROM generate_series(1, 20000) b) > 0

-- name: array fill
SELECT cardinality(array_fill(0, ARRAY[10000, 10000]))

-- name: sleep
SELECT pg_sleep(600)

-- name: least over a moving frame
SELECT max(s) FROM (SELECT min(i::numeric) OVER (ORDER BY i ROWS BETWEEN 50000 PRECEDING AND 50000 FOLLOWING) AS s FROM generate_series(1, 200000) i) q

-- name: string_agg in an order of its own
SELECT length(string_agg(i::text, ',' ORDER BY md5(i::text))) FROM generate_series(1, 3000000) i

-- name: array_agg of 5 million
SELECT cardinality(array_agg(i)) FROM generate_series(1, 5000000) i

-- name: sort of 3 million
SELECT md5(i::text) AS x FROM generate_series(1, 3000000) i ORDER BY x OFFSET 2999999

-- name: one search of 100 MB
SELECT repeat('ab', 50000000) ~ '[ab]*a[ab]{12}c'

-- name: match of 40 MB with groups
SELECT length((regexp_match(repeat('ab ', 13000000), '(.*)(a.*)$'))[1])

-- name: upper case of 200 MB
SELECT length(upper(repeat('ß', 100000000)))

-- name: 10 MB cut by letters that are translated
SELECT length(translate(repeat('abc', 30000000), 'abc', 'xyz'))

-- name: number of 100 million digits
SELECT repeat('9', 100000000)::numeric

-- name: logarithm of a long number
SELECT ln(repeat('7', 130000)::numeric)

-- name: rows in rows to a great length
SELECT ROW(ROW(ROW(repeat('"', 1000000))))

-- name: sum of 4,900 columns
SELECT max(x{{4900| + x}}) FROM generate_series(1, 3) x

-- name: comparisons of 4,900 columns, one of the other
SELECT count(*) FROM generate_series(1, 3) x WHERE x{{4900| || x::text}} <> 'a'

-- name: sum of 4,900 columns in a condition and an order
SELECT x FROM generate_series(1, 3) x WHERE x{{4900| + x}} > 1 ORDER BY x{{4800| + x}}
