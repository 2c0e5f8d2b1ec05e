"""Makes pytest run SQLAlchemy's own suite (sqlalchemy.testing) with the settings of setup.cfg."""

import pytest

pytest.register_assert_rewrite("sqlalchemy.testing.assertions")

from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: E402,F401,F403
