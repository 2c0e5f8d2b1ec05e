-- TATP (Telecommunication Application Transaction Processing): 100,000 subscribers.
CREATE TABLE subscriber (s_id int PRIMARY KEY, sub_nbr varchar(15) NOT NULL UNIQUE, bit_1 smallint, hex_1 smallint, byte2_1 smallint,
    msc_location int, vlr_location int);
CREATE TABLE access_info (s_id int NOT NULL REFERENCES subscriber, ai_type smallint NOT NULL, data1 smallint, data2 smallint, data3 varchar(3),
    data4 varchar(5), PRIMARY KEY (s_id, ai_type));
CREATE TABLE special_facility (s_id int NOT NULL REFERENCES subscriber, sf_type smallint NOT NULL, is_active smallint NOT NULL, error_cntrl smallint,
    data_a smallint, data_b varchar(5), PRIMARY KEY (s_id, sf_type));
CREATE TABLE call_forwarding (s_id int NOT NULL, sf_type smallint NOT NULL, start_time smallint NOT NULL, end_time smallint, numberx varchar(15),
    PRIMARY KEY (s_id, sf_type, start_time), FOREIGN KEY (s_id, sf_type) REFERENCES special_facility);
CREATE INDEX call_forwarding_of ON call_forwarding (s_id);
INSERT INTO subscriber SELECT g, lpad(g::text, 15, '0'), g % 2, g % 16, g % 256, g * 7, g * 11 FROM generate_series(1, 100000) g;
INSERT INTO access_info SELECT g, a, g % 256, a, 'ABC', 'ABCDE' FROM generate_series(1, 100000) g, generate_series(1, 4) a WHERE (g + a) % 8 < 5;
INSERT INTO special_facility SELECT g, a, CASE WHEN (g + a) % 20 < 17 THEN 1 ELSE 0 END, 0, g % 256, 'ABCDE'
    FROM generate_series(1, 100000) g, generate_series(1, 4) a WHERE (g + a) % 8 < 5;
INSERT INTO call_forwarding SELECT s_id, sf_type, t * 8, t * 8 + 4, lpad(s_id::text, 15, '0') FROM special_facility, generate_series(0, 2) t
    WHERE (s_id + sf_type + t) % 2 = 0;
ANALYZE;
