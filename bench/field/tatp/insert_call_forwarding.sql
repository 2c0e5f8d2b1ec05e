\set id random(1, 100000)
\set type random(1, 4)
\set start random(0, 2) * 8
BEGIN;
SELECT s_id FROM subscriber WHERE sub_nbr = lpad(:id::text, 15, '0');
SELECT sf_type FROM special_facility WHERE s_id = :id;
INSERT INTO call_forwarding SELECT s_id, sf_type, :start, :start + 4, 'new' FROM special_facility WHERE s_id = :id AND sf_type = :type
    ON CONFLICT DO NOTHING;
COMMIT;
