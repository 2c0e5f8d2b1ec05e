-- SmallBank (Alomari et al., ICDE 2008): 100,000 customers with a savings and a checking account each.
CREATE TABLE accounts (custid bigint PRIMARY KEY, name varchar(64) NOT NULL);
CREATE UNIQUE INDEX accounts_by_name ON accounts (name);
CREATE TABLE savings (custid bigint PRIMARY KEY, bal float8 NOT NULL);
CREATE TABLE checking (custid bigint PRIMARY KEY, bal float8 NOT NULL);
INSERT INTO accounts SELECT g, 'customer ' || lpad(g::text, 12, '0') FROM generate_series(0, 99999) g;
INSERT INTO savings SELECT g, 10000 + g % 40000 FROM generate_series(0, 99999) g;
INSERT INTO checking SELECT g, 10000 + g % 40000 FROM generate_series(0, 99999) g;
ALTER TABLE savings ADD FOREIGN KEY (custid) REFERENCES accounts;
ALTER TABLE checking ADD FOREIGN KEY (custid) REFERENCES accounts;
ANALYZE;
