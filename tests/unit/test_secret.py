"""The key of a user's jobs on several hosts: made once, whole, for this user alone."""

import os
import stat
import threading

import pytest

from platoon_base.errors import ConfigurationError
from platoon_base.multihost.addresses import find_key, key_file, read_or_make_key

pytestmark = pytest.mark.base


@pytest.fixture
def path(tmp_path, monkeypatch):
    found = tmp_path / "deep" / "key"
    monkeypatch.setenv("PLATOON_KEY_FILE", str(found))
    return found


def test_it_is_made_once_for_this_user_alone(path):
    key = read_or_make_key()
    assert len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read_or_make_key() == key == find_key()
    assert os.listdir(path.parent) == ["key"]


def test_without_a_variable_it_is_in_the_home(tmp_path, monkeypatch):
    monkeypatch.delenv("PLATOON_KEY_FILE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert key_file() == tmp_path / ".platoon" / "key"


def test_several_hosts_that_make_it_at_once_get_the_same(path):
    keys = []
    threads = [threading.Thread(target=lambda: keys.append(read_or_make_key())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(keys)) == 1
    assert len(keys) == 16


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("00" * 32, 0o644, "other users can read"),
        ("00" * 31, 0o600, "64 hexadecimal digits"),
        ("no key", 0o600, "64 hexadecimal digits"),
        ("é", 0o600, "64 hexadecimal digits"),
        ("", 0o600, "64 hexadecimal digits"),
    ],
)
def test_what_is_no_key_or_readable_by_others_is_refused(path, text, mode, message):
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(mode)
    for read in (read_or_make_key, find_key):
        with pytest.raises(ConfigurationError, match=message):
            read()


def test_where_nothing_can_be_written_the_variable_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PLATOON_KEY_FILE", str(tmp_path / "file" / "key"))
    with pytest.raises(ConfigurationError, match="PLATOON_KEY_FILE"):
        read_or_make_key()
