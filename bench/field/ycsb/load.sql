-- YCSB's table: 100,000 records of ten fields of 100 bytes.
CREATE TABLE usertable (ycsb_key int PRIMARY KEY, field1 text, field2 text, field3 text, field4 text, field5 text,
    field6 text, field7 text, field8 text, field9 text, field10 text);
INSERT INTO usertable SELECT g, repeat(chr(97 + g % 26), 100), repeat('b', 100), repeat('c', 100), repeat('d', 100), repeat('e', 100),
    repeat('f', 100), repeat('g', 100), repeat('h', 100), repeat('i', 100), repeat('j', 100) FROM generate_series(0, 99999) g;
ANALYZE usertable;
