\set key random_zipfian(1, 100000, 1.01) - 1
\set value random(1000000, 9999999)
UPDATE usertable SET field1 = 'changed-' || :value, field2 = 'changed-' || :value, field3 = 'c', field4 = 'd', field5 = 'e', field6 = 'f', field7 = 'g',
    field8 = 'h', field9 = 'i', field10 = 'j' WHERE ycsb_key = :key;
