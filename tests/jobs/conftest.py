"""Fixtures of the tests of whole jobs."""

import subprocess

import pytest

from tests.helpers.launching_hosts import Hosts, clean_environment


@pytest.fixture
def hosts(tmp_path):
    """Launchers on several hosts, which are folders of this machine."""
    found = Hosts(tmp_path, {**clean_environment(), "COLUMNS": "200"})
    yield found
    found.close()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"needs to mount a small file system, as root: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
