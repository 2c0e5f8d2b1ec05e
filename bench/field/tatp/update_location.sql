\set id random(1, 100000)
\set location random(0, 2000000000)
BEGIN;
SELECT s_id FROM subscriber WHERE sub_nbr = lpad(:id::text, 15, '0');
UPDATE subscriber SET vlr_location = :location WHERE s_id = :id;
COMMIT;
