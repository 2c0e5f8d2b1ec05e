\set id random(1, 100000)
\set type random(1, 4)
\set start random(0, 2) * 8
BEGIN;
SELECT s_id FROM subscriber WHERE sub_nbr = lpad(:id::text, 15, '0');
DELETE FROM call_forwarding WHERE s_id = :id AND sf_type = :type AND start_time = :start;
COMMIT;
