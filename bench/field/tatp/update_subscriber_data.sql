\set id random(1, 100000)
\set bit random(0, 1)
\set data random(0, 255)
\set type random(1, 4)
BEGIN;
UPDATE subscriber SET bit_1 = :bit WHERE s_id = :id;
UPDATE special_facility SET data_a = :data WHERE s_id = :id AND sf_type = :type;
COMMIT;
