"""SQLAlchemy's core, ORM and reflection, and Alembic's operations, against a running node.

Usage: sqlalchemy_smoke.py HOST PORT USER DATABASE. Exits non-zero on the first mismatch. The same answers come from PostgreSQL.
"""

import datetime
import decimal
import sys
import uuid

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata, produce_migrations
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import orm
from sqlalchemy.dialects import postgresql as pg

HOST, PORT, USER, DATABASE = sys.argv[1:5]


def check(name, found, expected):
    if found != expected:
        sys.exit(f"FAILED {name}\nexpected: {expected!r}\nfound:    {found!r}")
    print("ok", name)


class Base(orm.DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers"
    __table_args__ = {"comment": "who buys"}
    id: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, sa.Identity(), primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(sa.String(50), unique=True)
    since: orm.Mapped[datetime.datetime] = orm.mapped_column(sa.DateTime(timezone=True), server_default=sa.func.now())
    orders: orm.Mapped[list["Order"]] = orm.relationship(back_populates="customer", cascade="all, delete-orphan")


class Order(Base):
    __tablename__ = "orders"
    __table_args__ = (sa.CheckConstraint("total >= 0", name="total_not_negative"), sa.Index("newest_orders", "customer_id", sa.text("total DESC")))
    id: orm.Mapped[uuid.UUID] = orm.mapped_column(primary_key=True, default=uuid.uuid4)
    customer_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("customers.id", ondelete="CASCADE"))
    total: orm.Mapped[decimal.Decimal] = orm.mapped_column(sa.Numeric(10, 2))
    lines: orm.Mapped[dict] = orm.mapped_column(pg.JSONB, default=dict)
    labels: orm.Mapped[list[str]] = orm.mapped_column(pg.ARRAY(sa.Text), default=list)
    customer: orm.Mapped[Customer] = orm.relationship(back_populates="orders")


engine = sa.create_engine(f"postgresql+psycopg://{USER}@{HOST}:{PORT}/{DATABASE}?sslmode=disable")
Base.metadata.drop_all(engine)
Base.metadata.create_all(engine)
Base.metadata.create_all(engine)

with orm.Session(engine) as session:
    people = [Customer(name=name) for name in ("Ada", "Bob", "Cid")]
    for n in range(9):
        people[n % 3].orders.append(Order(total=decimal.Decimal(n) * 2, lines={"n": n, "items": [n, None]}, labels=[f"l{n}", "all"]))
    session.add_all(people)
    session.commit()
    check("loaded", [len(p.orders) for p in session.scalars(sa.select(Customer).order_by(Customer.name))], [3, 3, 3])
    check("joined", session.scalars(sa.select(Order).options(orm.joinedload(Order.customer)).where(Order.total == 16)).one().customer.name, "Cid")
    check("selectin", sum(len(p.orders) for p in session.scalars(sa.select(Customer).options(orm.selectinload(Customer.orders)))), 9)
    grouped = sa.select(Customer.name, sa.func.sum(Order.total), sa.func.count()).join(Order).group_by(Customer.name).having(sa.func.sum(Order.total) > 20).order_by(Customer.name)
    check("grouped", session.execute(grouped).all(), [("Bob", decimal.Decimal("24.00"), 3), ("Cid", decimal.Decimal("30.00"), 3)])
    check("json", session.scalar(sa.select(sa.func.count()).where(Order.lines["n"].as_integer() > 5)), 3)
    check("json contains", session.scalar(sa.select(sa.func.count()).where(Order.lines.contains({"n": 3}))), 1)
    check("array", session.scalar(sa.select(sa.func.count()).where(Order.labels.any("l4"))), 1)
    top = sa.select(Order.total).where(Order.customer_id == Customer.id).order_by(Order.total.desc()).limit(1).scalar_subquery()
    check("scalar subquery", session.execute(sa.select(Customer.name, top).order_by(Customer.name)).all()[0], ("Ada", decimal.Decimal("12.00")))
    ranked = sa.select(Order.total, sa.func.row_number().over(partition_by=Order.customer_id, order_by=Order.total.desc()).label("r")).cte("ranked")
    check("cte and window", sorted(session.scalars(sa.select(ranked.c.total).where(ranked.c.r == 1))), [12, 14, 16])
    upsert = pg.insert(Customer).values([{"name": "Ada"}, {"name": "Dan"}])
    upsert = upsert.on_conflict_do_update(index_elements=["name"], set_={"name": upsert.excluded.name + "!"}).returning(Customer.name)
    check("upsert", sorted(session.scalars(upsert)), ["Ada!", "Dan"])
    session.rollback()
    with session.begin_nested() as savepoint:
        session.add(Customer(name="Eve"))
        session.flush()
        savepoint.rollback()
    check("savepoint", session.scalar(sa.select(sa.func.count()).select_from(Customer)), 3)
    try:
        with session.begin_nested():
            session.add(Customer(name="Bob"))
            session.flush()
        sys.exit("FAILED unique: no error")
    except sa.exc.IntegrityError as error:
        check("unique", error.orig.sqlstate, "23505")
    session.delete(session.scalars(sa.select(Customer).where(Customer.name == "Cid")).one())
    session.commit()
    check("cascade", session.scalar(sa.select(sa.func.count()).select_from(Order)), 6)
    check("bulk insert", len(session.scalars(sa.insert(Customer).returning(Customer.id), [{"name": f"c{n}"} for n in range(2500)]).all()), 2500)
    streamed = session.execute(sa.select(Customer.id).order_by(Customer.id).execution_options(yield_per=100))
    first = next(streamed)
    check("stream", (session.scalar(sa.text("select count(*) from pg_cursors")), 1 + sum(1 for _ in streamed)), (1, 2502))
    check("escaped like", session.scalar(sa.select(sa.func.count()).where(Customer.name.contains("c%", autoescape=True))), 0)
    session.rollback()

inspector = sa.inspect(engine)
check("columns", [(c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns("orders")],
      [("id", "UUID", False), ("customer_id", "BIGINT", False), ("total", "NUMERIC(10, 2)", False), ("lines", "JSONB", False), ("labels", "ARRAY", False)])
check("primary key", inspector.get_pk_constraint("orders")["constrained_columns"], ["id"])
check("foreign keys", [(k["constrained_columns"], k["referred_table"], k["options"]) for k in inspector.get_foreign_keys("orders")],
      [(["customer_id"], "customers", {"ondelete": "CASCADE"})])
check("unique constraints", [u["column_names"] for u in inspector.get_unique_constraints("customers")], [["name"]])
check("checks", [c["name"] for c in inspector.get_check_constraints("orders")], ["total_not_negative"])
check("comment", inspector.get_table_comment("customers")["text"], "who buys")
check("tables", {"customers", "orders"} <= set(inspector.get_table_names()), True)
check("indexes", [(i["name"], i["column_names"], i["unique"]) for i in inspector.get_indexes("orders")],
      [("newest_orders", ["customer_id", "total"], False)])
check("sorted index", inspector.get_indexes("orders")[0]["column_sorting"], {"total": ("desc",)})
check("unique index", [(i["name"], i["duplicates_constraint"]) for i in inspector.get_indexes("customers")], [("customers_name_key", "customers_name_key")])
check("identity", inspector.get_columns("customers")[0]["identity"]["start"], 1)

def differences(connection, metadata):
    options = {
        "compare_type": True, "compare_server_default": True,
        "include_name": lambda name, kind, _: kind != "table" or name in metadata.tables,
    }
    return MigrationContext.configure(connection, opts=options)


with engine.begin() as connection:
    check("autogenerate finds nothing", compare_metadata(differences(connection, Base.metadata), Base.metadata), [])
    wanted = sa.MetaData()
    for table in Base.metadata.tables.values():
        table.to_metadata(wanted)
    sa.Table("parts", wanted, sa.Column("id", sa.Integer, primary_key=True), sa.Column("code", sa.String(20), index=True, unique=True),
             sa.Column("order_id", sa.ForeignKey("orders.id"), index=True), sa.Column("made", sa.Date, server_default=sa.text("'2024-01-01'")))
    wanted.tables["customers"].append_column(sa.Column("note", sa.Text))
    sa.Index("customers_since", wanted.tables["customers"].c.since)
    context = differences(connection, wanted)
    found = [change[0] for change in compare_metadata(context, wanted)]
    check("autogenerate finds changes", sorted(found), ["add_column", "add_index", "add_index", "add_index", "add_table"])
    script = produce_migrations(context, wanted)
    op = Operations(context)

    for step in script.upgrade_ops.ops:
        if hasattr(step, "ops") and step.__class__.__name__ == "ModifyTableOps":
            for inner in step.ops:
                op.invoke(inner)
        else:
            op.invoke(step)
    check("nothing left to migrate", compare_metadata(differences(connection, wanted), wanted), [])
    wanted.tables["parts"].drop(connection)
    op.drop_index("customers_since", "customers")
    op.drop_column("customers", "note")
    check("and back", compare_metadata(differences(connection, Base.metadata), Base.metadata), [])

with engine.begin() as connection:
    op = Operations(MigrationContext.configure(connection))
    op.create_table("moved", sa.Column("id", sa.Integer, primary_key=True), sa.Column("a", sa.Integer))
    op.add_column("moved", sa.Column("b", sa.String(10), server_default="x", nullable=False))
    op.bulk_insert(sa.table("moved", sa.column("id"), sa.column("a")), [{"id": n, "a": n * n} for n in range(5)])
    op.create_index("moved_a", "moved", ["a"], unique=True)
    op.alter_column("moved", "a", new_column_name="square", nullable=False)
    op.alter_column("moved", "square", type_=sa.BigInteger)
    op.create_check_constraint("small", "moved", "square < 100")
    op.create_foreign_key("to_customers", "moved", "customers", ["square"], ["id"], postgresql_not_valid=True)
    op.drop_constraint("to_customers", "moved")
    op.rename_table("moved", "stayed")
    op.drop_index("moved_a")
    op.drop_column("stayed", "b")
    check("migrated", connection.execute(sa.text("select id, square from stayed order by id desc limit 1")).all(), [(4, 16)])
    op.drop_table("stayed")
Base.metadata.drop_all(engine)
check("dropped", {"customers", "orders"} & set(sa.inspect(engine).get_table_names()), set())
print("sqlalchemy: all ok")
