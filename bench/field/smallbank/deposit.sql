\set id random(0, 99999)
BEGIN;
SELECT custid, name FROM accounts WHERE name = 'customer ' || lpad(:id::text, 12, '0');
UPDATE checking SET bal = bal + 1.3 WHERE custid = :id;
COMMIT;
