\set id random(1, 100000)
\set type random(1, 4)
SELECT data1, data2, data3, data4 FROM access_info WHERE s_id = :id AND ai_type = :type;
