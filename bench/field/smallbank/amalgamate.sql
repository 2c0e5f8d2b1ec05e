\set one random(0, 99999)
\set two (:one + random(1, 99998)) % 100000
BEGIN;
SELECT custid, name FROM accounts WHERE custid = :one;
SELECT custid, name FROM accounts WHERE custid = :two;
SELECT bal FROM savings WHERE custid = :one;
SELECT bal FROM checking WHERE custid = :two;
UPDATE checking SET bal = 0.0 WHERE custid = :one;
UPDATE savings SET bal = bal - 1 WHERE custid = :two;
COMMIT;
