"""Endpoints of the first host: how they are divided, and what is none."""

import os
import stat
import threading

import pytest

from platoon_base.errors import ConfigurationError
from platoon_base.multihost.addresses import (
    DEFAULT_PORT,
    divided,
    find_key,
    key_file,
    own_address_towards,
    read_or_make_key,
    resolved,
)

pytestmark = pytest.mark.base


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("10.0.0.1", ("10.0.0.1", DEFAULT_PORT)),
        ("10.0.0.1:5", ("10.0.0.1", 5)),
        ("node-1.example:65535", ("node-1.example", 65535)),
        ("[fd00::1]:5", ("fd00::1", 5)),
        ("[fd00::1]", ("fd00::1", DEFAULT_PORT)),
        ("fd00::1", ("fd00::1", DEFAULT_PORT)),
        ("::1", ("::1", DEFAULT_PORT)),
        ("fe80::1%eth0", ("fe80::1%eth0", DEFAULT_PORT)),
    ],
)
def test_endpoints(endpoint, expected):
    assert divided(endpoint) == expected


@pytest.mark.parametrize(
    "endpoint", ["", ":", ":5", "a:", "a:b", "a:0", "a:65536", "[fd00::1]:", "[fd00::1", "[]:5", "[]"]
)
def test_what_is_no_endpoint_is_refused(endpoint):
    with pytest.raises(ConfigurationError, match="it must be HOST or HOST:PORT"):
        divided(endpoint)


@pytest.mark.parametrize("name", ["a..b", "x" * 64 + ".example"])
def test_what_can_be_no_name_is_refused_at_once(name):
    with pytest.raises(ConfigurationError, match="which is not a host name"):
        resolved(name)


def test_addresses_resolve_to_themselves():
    assert resolved("127.0.0.1") == "127.0.0.1"
    assert own_address_towards("127.0.0.1") == "127.0.0.1"
    assert own_address_towards("255.255.255.255") == ""  # no way leads there without asking for broadcasts


# The key that hosts share.


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
