"""Endpoints of the first host: how they are divided, and what is none."""

import pytest

from platoon_base.errors import ConfigurationError
from platoon_base.multihost.addresses import DEFAULT_PORT, divided, own_address_towards, resolved

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
