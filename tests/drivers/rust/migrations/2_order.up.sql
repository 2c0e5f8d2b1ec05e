create table sx_order (
    id bigserial primary key,
    person bigint not null references sx_person (id) on delete cascade,
    item text not null,
    constraint sx_order_once unique (person, item)
);
