"""Django's ORM and migrations, unmodified, against a running node.

Usage: django_orm.py HOST PORT USER DATABASE. Exits non-zero on the first mismatch. The same answers come from PostgreSQL.
"""

import datetime
import decimal
import io
import pathlib
import sys
import tempfile

import django
from django.conf import settings

HOST, PORT, USER, DATABASE = sys.argv[1:5]
MIGRATIONS = pathlib.Path(tempfile.mkdtemp()) / "shop_migrations"
MIGRATIONS.mkdir()
(MIGRATIONS / "__init__.py").touch()
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(MIGRATIONS.parent)]

settings.configure(
    SECRET_KEY="test",
    USE_TZ=True,
    SITE_ID=1,
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=[
        "django.contrib.contenttypes", "django.contrib.auth", "django.contrib.admin", "django.contrib.messages",
        "django.contrib.sessions", "django.contrib.sites", "django.contrib.flatpages", "django.contrib.redirects", "django_shop",
    ],
    MIGRATION_MODULES={"django_shop": "shop_migrations"},
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql", "NAME": DATABASE, "USER": USER, "HOST": HOST, "PORT": PORT,
            "OPTIONS": {"sslmode": "disable"},
        }
    },
)
django.setup()

from django.contrib.auth.models import Group, Permission, User  # noqa: E402
from django.contrib.sessions.backends.db import SessionStore  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.core.paginator import Paginator  # noqa: E402
from django.db import IntegrityError, connection, models, transaction  # noqa: E402
from django.db.models import Avg, Case, Count, Exists, F, Max, OuterRef, Q, Subquery, Sum, Value, When, Window  # noqa: E402
from django.db.models.functions import Coalesce, Concat, Extract, Length, Lower, Rank, TruncMonth  # noqa: E402
from django_shop.models import Author, Book, Order, Tag  # noqa: E402


def check(name, found, expected):
    if found != expected:
        sys.exit(f"FAILED {name}\nexpected: {expected!r}\nfound:    {found!r}")
    print("ok", name)


def fails(name, kind, run):
    try:
        with transaction.atomic():
            run()
    except kind:
        print("ok", name)
    else:
        sys.exit(f"FAILED {name}: no error")


quiet = {"verbosity": 0, "interactive": False}
call_command("makemigrations", "django_shop", **quiet)
call_command("migrate", **quiet)
call_command("migrate", **quiet)
check("permissions", Permission.objects.filter(content_type__app_label="django_shop").count(), 16)
call_command("makemigrations", check=True, dry_run=True, **quiet)
print("ok nothing left to migrate")

UTC = datetime.timezone.utc
when = datetime.datetime(2024, 2, 29, 12, 30, 15, 250000, tzinfo=UTC)
ada = Author.objects.create(name="Ada", born=datetime.date(1815, 12, 10))
bob, cid = Author.objects.bulk_create([Author(name="Bob"), Author(name="Cid")])
check("bulk_create returns keys", bob.pk is not None and cid.pk == bob.pk + 1, True)
tags = {slug: Tag.objects.create(slug=slug) for slug in ("new", "old", "odd")}
books = [
    Book(title=f"Book {n}", author=(ada, bob)[n % 2], price=decimal.Decimal(n) + decimal.Decimal("0.50"), stock=n,
         extra={"n": n, "tags": ["a", None], "deep": {"x": n % 3}}, added=when + datetime.timedelta(days=20 * n),
         cover=bytes([n]), length=datetime.timedelta(minutes=n), rating=n / 4, active=n % 3 != 0,
         added_from=f"10.0.0.{n}" if n % 2 else f"2001:db8::{n}")
    for n in range(10)
]
Book.objects.bulk_create(books)
for n, book in enumerate(books):
    book.tags.add(*[tags["new"], tags["odd"]][: 1 + n % 2])
first = Book.objects.get(pk=books[3].pk)
check("fields", (first.title, first.price, first.extra, bytes(first.cover), first.added, first.length, first.rating, first.active),
      ("Book 3", decimal.Decimal("3.50"), books[3].extra, b"\x03", books[3].added, books[3].length, 0.75, False))

check("addresses", (first.added_from, Book.objects.get(added_from="2001:db8::4").stock,
                    sorted(Book.objects.filter(added_from__startswith="10.").values_list("added_from", flat=True))),
      ("10.0.0.3", 4, ["10.0.0.1", "10.0.0.3", "10.0.0.5", "10.0.0.7", "10.0.0.9"]))
check("filter", [b.stock for b in Book.objects.filter(Q(stock__gt=6) | Q(title__icontains="book 1")).order_by("stock")], [1, 7, 8, 9])
check("lookups", Book.objects.filter(title__startswith="Book", added__year=2024, added__date__gt=datetime.date(2024, 3, 1),
                                     author__name__iexact="ADA").count(), 4)
check("regex", Book.objects.filter(title__regex=r"[357]$").count(), 3)
check("in and range", Book.objects.filter(stock__in=[1, 2, 3, 50], price__range=(2, 4)).count(), 2)
check("escape", Author.objects.filter(name__contains="%").count(), 0)
check("json", Book.objects.filter(extra__deep__x=1, extra__n__gte=4).count(), 2)
check("json keys", Book.objects.filter(extra__has_key="n").count(), 10)
check("json contains", Book.objects.filter(extra__contains={"deep": {"x": 2}}).count(), 3)
check("select_related", sorted({b.author.name for b in Book.objects.select_related("author")}), ["Ada", "Bob"])
check("prefetch_related", sum(len(b.tags.all()) for b in Book.objects.prefetch_related("tags")), 15)
check("values", list(Book.objects.values_list("author__name").annotate(n=Count("pk"), s=Sum("price"), m=Max("added")).order_by("author__name")),
      [("Ada", 5, decimal.Decimal("22.50"), books[8].added), ("Bob", 5, decimal.Decimal("27.50"), books[9].added)])
check("aggregate", Book.objects.aggregate(n=Count("pk", filter=Q(active=True)), a=Avg("stock"), s=Sum("stock")), {"n": 6, "a": 4.5, "s": 45})
check("having", list(Tag.objects.annotate(n=Count("books")).filter(n__gt=5).values_list("slug", "n")), [("new", 10)])
check("empty relation", list(Tag.objects.annotate(n=Count("books")).order_by("slug").values_list("slug", "n")), [("new", 10), ("odd", 5), ("old", 0)])
check("exists", Author.objects.filter(Exists(Book.objects.filter(author=OuterRef("pk"), stock=9))).get().name, "Bob")
newest = Book.objects.filter(author=OuterRef("pk")).order_by("-added").values("title")[:1]
check("subquery", list(Author.objects.annotate(last=Subquery(newest)).values_list("name", "last")), [("Ada", "Book 8"), ("Bob", "Book 9"), ("Cid", None)])
check("case", list(Book.objects.annotate(k=Case(When(stock__lt=5, then=Value("few")), default=Value("many"))).values_list("k").annotate(n=Count("*")).order_by("k")),
      [("few", 5), ("many", 5)])
check("functions", Author.objects.annotate(t=Concat(Lower("name"), Value("-"), Length("name"), output_field=models.TextField())).get(pk=ada.pk).t, "ada-3")
check("window", [b.r for b in Book.objects.annotate(r=Window(Rank(), partition_by="author", order_by=F("price").desc())).order_by("author__name", "r")][:5], [1, 2, 3, 4, 5])
check("dates", [(d.month, n) for d, n in Book.objects.annotate(m=TruncMonth("added")).values_list("m").annotate(n=Count("*")).order_by("m")][:3], [(2, 1), (3, 1), (4, 2)])
check("extract", Book.objects.annotate(w=Extract("added", "week_day")).order_by("added").first().w, 5)
check("distinct on", [b.stock for b in Book.objects.order_by("author__name", "-stock").distinct("author__name")], [8, 9])
check("union", Book.objects.filter(stock=1).values_list("stock").union(Book.objects.filter(stock=2).values_list("stock")).count(), 2)
check("pages", [b.stock for b in Paginator(Book.objects.order_by("stock"), 4).page(3)], [8, 9])
check("iterator", sum(1 for _ in Book.objects.iterator(chunk_size=3)), 10)
with transaction.atomic():
    rows = Book.objects.order_by("stock").iterator(chunk_size=2)
    seen = [next(rows).stock, next(rows).stock]
    Book.objects.filter(stock=9).update(rating=1.5)
    with connection.cursor() as cursor:
        cursor.execute("select count(*) from pg_cursors where name like '_django_curs%%'")
        check("a server-side cursor", cursor.fetchone()[0], 1)
    check("iterator beside writes", seen + [book.stock for book in rows], list(range(10)))
check("raw", [a.name for a in Author.objects.raw("select * from django_shop_author where name > %s order by id", ["B"])], ["Bob", "Cid"])
check("coalesce", Author.objects.annotate(y=Coalesce("born", datetime.date(1, 1, 1))).filter(y__lt=datetime.date(1000, 1, 1)).count(), 2)

check("update with F", Book.objects.filter(stock__gte=8).update(stock=F("stock") + 10, price=F("price") * 2), 2)
check("updated", sorted(Book.objects.filter(stock__gt=10).values_list("stock", "price")), [(18, decimal.Decimal("17.00")), (19, decimal.Decimal("19.00"))])
check("update through a relation", Book.objects.filter(author__name="Cid").update(stock=0), 0)
found, made = Tag.objects.get_or_create(slug="old")
check("get_or_create", (found.pk, made), (tags["old"].pk, False))
check("update_or_create", Author.objects.update_or_create(name="Dan", defaults={"born": datetime.date(2000, 1, 1)})[1], True)
for book in books[:3]:
    book.rating = 5.0
check("bulk_update", Book.objects.bulk_update(books[:3], ["rating"]), 3)
check("bulk_updated", Book.objects.filter(rating=5.0).count(), 3)
Tag.objects.bulk_create([Tag(slug="new"), Tag(slug="fine")], ignore_conflicts=True)
check("ignore_conflicts", Tag.objects.count(), 4)

fails("unique", IntegrityError, lambda: Tag.objects.create(slug="new"))
fails("check", IntegrityError, lambda: Book.objects.filter(stock=1).update(price=-1))
fails("foreign key", IntegrityError, lambda: (Order.objects.create(book_id="12345678-1234-5678-1234-567812345678", count=1),
                                              connection.check_constraints()))
fails("protect", models.ProtectedError, lambda: (Order.objects.create(book=books[0], count=1), books[0].delete()))
with transaction.atomic():
    Tag.objects.create(slug="kept")
    try:
        with transaction.atomic():
            Tag.objects.create(slug="lost")
            raise KeyError
    except KeyError:
        pass
    locked = Book.objects.select_for_update().get(pk=books[4].pk)
    locked.stock = 400
    locked.save()
check("savepoints", sorted(Tag.objects.filter(slug__in=["kept", "lost"]).values_list("slug", flat=True)), ["kept"])
a = Order.objects.create(book=books[1], count=1)
b = Order.objects.create(book=books[1], count=2, before=a)
a.delete()
b.refresh_from_db()
check("set null", b.before, None)
Order.objects.all().delete()
check("cascade", bob.delete()[1]["django_shop.Book"], 5)
check("many to many", ada.books.filter(tags__slug="new").count(), 5)

user = User.objects.create_user("eve", "eve@example.org", "secret")
user.groups.add(Group.objects.create(name="staff"))
user.user_permissions.add(Permission.objects.get(codename="add_book"))
check("auth", User.objects.get(username="eve").has_perm("django_shop.add_book"), True)
session = SessionStore()
session["cart"] = [1, 2, 3]
session.save()
check("session", SessionStore(session.session_key)["cart"], [1, 2, 3])

shown = io.StringIO()
call_command("inspectdb", "django_shop_book", "django_shop_order", stdout=shown)
for line in ("key = models.UUIDField(primary_key=True)", "price = models.DecimalField(max_digits=10, decimal_places=2)",
             "author = models.ForeignKey('DjangoShopAuthor', models.DO_NOTHING)", "unique_together = (('author', 'title'),)"):
    check(f"inspectdb {line.split()[0]}", line in shown.getvalue(), True)
dumped = io.StringIO()
call_command("dumpdata", "django_shop", stdout=dumped)
call_command("flush", **quiet)
check("flush", Book.objects.count(), 0)
with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    file.write(dumped.getvalue())
    file.flush()
    call_command("loaddata", file.name, verbosity=0)
check("loaddata", (Book.objects.count(), Author.objects.count()), (5, 3))
check("sequences after loaddata", Author.objects.create(name="Fay").pk > Author.objects.exclude(name="Fay").aggregate(m=Max("pk"))["m"], True)
call_command("migrate", "django_shop", "zero", **quiet)
check("migrate back", [t for t in connection.introspection.table_names() if t.startswith("django_shop")], [])
print("django: all ok")
