\set id random(1, 100000)
\set type random(1, 4)
\set start random(0, 2) * 8
\set end random(1, 24)
SELECT cf.numberx FROM special_facility sf, call_forwarding cf WHERE sf.s_id = :id AND sf.sf_type = :type AND sf.is_active = 1
    AND cf.s_id = sf.s_id AND cf.sf_type = sf.sf_type AND cf.start_time <= :start AND cf.end_time > :end;
