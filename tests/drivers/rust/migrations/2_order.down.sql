drop table sx_order;
