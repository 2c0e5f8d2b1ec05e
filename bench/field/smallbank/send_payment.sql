\set one random(0, 99999)
\set two (:one + random(1, 99998)) % 100000
BEGIN;
SELECT custid, name FROM accounts WHERE custid = :one;
SELECT custid, name FROM accounts WHERE custid = :two;
SELECT bal FROM checking WHERE custid = :one;
UPDATE checking SET bal = bal - 5 WHERE custid = :one;
UPDATE checking SET bal = bal + 5 WHERE custid = :two;
COMMIT;
