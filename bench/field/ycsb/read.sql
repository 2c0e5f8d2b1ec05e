\set key random_zipfian(1, 100000, 1.01) - 1
SELECT * FROM usertable WHERE ycsb_key = :key;
