"""SQLAlchemy's test suite for dialects, as SQLAlchemy ships it: what it imports is what runs."""

from sqlalchemy.testing.suite import *  # noqa: F401,F403
