\set id random(0, 99999)
BEGIN;
SELECT custid, name FROM accounts WHERE name = 'customer ' || lpad(:id::text, 12, '0');
SELECT bal FROM savings WHERE custid = :id;
SELECT bal FROM checking WHERE custid = :id;
UPDATE checking SET bal = bal - 5 WHERE custid = :id;
COMMIT;
