"""How scripts of workers require an error: pytest's way would import pytest in each of them."""

import contextlib

from platoon_base.errors import PlatoonError


@contextlib.contextmanager
def raises(error, *words):
    """Require that the block raises this error, with all of these words in its text."""
    try:
        yield
    except error as exc:
        text = str(exc)
    else:
        raise AssertionError(f"nothing was raised: {error}")
    assert all(word in text for word in words), text


def refused(call, *words, error=PlatoonError):
    """Require that a call is refused, with all of these words."""
    with raises(error, *words):
        call()
