\set id random(1, 100000)
SELECT * FROM subscriber WHERE s_id = :id;
