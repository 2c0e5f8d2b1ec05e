-- What the browser's visit looks at: a small shop, with a name that tries to be markup.
CREATE TABLE customer (id int PRIMARY KEY, name text NOT NULL, email text UNIQUE, joined timestamptz DEFAULT now());
CREATE TABLE product (id int PRIMARY KEY, title text NOT NULL, price numeric(10,2) CHECK (price >= 0), tags text[]);
CREATE TABLE purchase (id int PRIMARY KEY, customer int NOT NULL REFERENCES customer, made timestamptz DEFAULT now(), note jsonb);
CREATE TABLE purchase_line (purchase int REFERENCES purchase, line int, product int NOT NULL REFERENCES product, quantity int NOT NULL, PRIMARY KEY (purchase, line));
CREATE TABLE "<script>alert(1)</script>" (id int PRIMARY KEY, "<img src=x onerror=alert(2)>" text);
CREATE INDEX purchase_customer ON purchase (customer);
CREATE VIEW spent AS SELECT p.customer, sum(l.quantity * t.price) AS total FROM purchase p JOIN purchase_line l ON l.purchase = p.id JOIN product t ON t.id = l.product GROUP BY p.customer;
INSERT INTO customer SELECT g, 'Customer ' || g, 'c' || g || '@example.org' FROM generate_series(1, 250) g;
INSERT INTO product SELECT g, 'Product ' || g, g * 1.5, ARRAY['a', 'b'] FROM generate_series(1, 40) g;
INSERT INTO purchase SELECT g, 1 + g % 250, now(), '{"gift": true}' FROM generate_series(1, 400) g;
INSERT INTO purchase_line SELECT g, 1, 1 + g % 40, 1 + g % 3 FROM generate_series(1, 400) g;
INSERT INTO "<script>alert(1)</script>" VALUES (1, '<img src=x onerror=alert(3)>');
-- What asks for an index.
CREATE TABLE visit (id int PRIMARY KEY, page int, at timestamptz DEFAULT now());
INSERT INTO visit (id, page) SELECT g, g % 300 FROM generate_series(1, 1500) g;
SELECT count(*) AS visits FROM visit WHERE page = 7;
