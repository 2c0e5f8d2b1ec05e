drop table sx_person;
