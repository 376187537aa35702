"""Marks of tests that start processes with packages which may not be here; nothing is imported to find out."""

import importlib.util

import pytest

__all__ = ["marks_of", "needs", "needs_blocks", "needs_theano"]


def needs(mark, module, reason):
    """Return a decorator that gives a test a mark, and skips it for this reason where the module is missing."""
    skip = pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=reason)
    return lambda test: getattr(pytest.mark, mark)(skip(test))


def marks_of(decorator):
    """Return the marks that such a decorator gives, for a single parameter of a test."""

    def marked():
        pass

    return decorator(marked).pytestmark


needs_theano = needs("theano", "theano", "needs Theano: `make setup` installs it on Python 3.11")
needs_blocks = needs("blocks", "blocks", "needs Blocks: BLOCKS=/path/to/a/checkout make test")
