"""Models of the Django test: one of each kind of field and relation that web applications use."""

import uuid

from django.db import models


class Author(models.Model):
    name = models.CharField(max_length=100, db_index=True)
    born = models.DateField(null=True, blank=True)

    class Meta:
        ordering = ["name"]


class Tag(models.Model):
    slug = models.SlugField(unique=True)


class Book(models.Model):
    key = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    title = models.TextField()
    author = models.ForeignKey(Author, on_delete=models.CASCADE, related_name="books")
    tags = models.ManyToManyField(Tag, related_name="books", blank=True)
    price = models.DecimalField(max_digits=10, decimal_places=2)
    stock = models.PositiveIntegerField(default=0)
    extra = models.JSONField(default=dict)
    cover = models.BinaryField(null=True)
    added = models.DateTimeField()
    length = models.DurationField(null=True)
    rating = models.FloatField(null=True)
    active = models.BooleanField(default=True)
    added_from = models.GenericIPAddressField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(price__gte=0), name="price_not_negative"),
            models.UniqueConstraint(fields=["author", "title"], name="one_title_an_author"),
        ]
        indexes = [models.Index(fields=["-added", "title"], name="newest")]


class Order(models.Model):
    book = models.ForeignKey(Book, on_delete=models.PROTECT)
    before = models.ForeignKey("self", null=True, on_delete=models.SET_NULL)
    count = models.SmallIntegerField()
    note = models.CharField(max_length=20, default="")
