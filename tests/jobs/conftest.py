"""Fixtures of the tests of whole jobs."""

import pytest

from tests.helpers.launching_hosts import Hosts, clean_environment


@pytest.fixture
def hosts(tmp_path):
    """Launchers on several hosts, which are folders of this machine."""
    found = Hosts(tmp_path, {**clean_environment(), "COLUMNS": "200"})
    yield found
    found.close()
