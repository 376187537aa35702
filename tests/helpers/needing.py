"""Packages that may not be here: marks of tests that start processes with them, for which nothing is imported."""

import importlib.util

import pytest

from platoon_base import compat

__all__ = ["marks_of", "needs", "needs_blocks", "needs_loops", "needs_package", "needs_theano", "require"]

WHY = {
    "theano": "needs Theano: `make setup` installs it on Python 3.11",
    "fuel": "needs Fuel: `make setup` installs it on Python 3.11",
    "blocks": "needs Blocks: BLOCKS=/path/to/a/checkout make test",
}


def require(package):
    """Import a package that is repaired before, or skip the file where it is missing."""
    compat.apply()
    return pytest.importorskip(package, reason=WHY[package.partition(".")[0]])


def needs(mark, module, reason):
    """Return a decorator that gives a test a mark, and skips it for this reason where the module is missing."""
    skip = pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=reason)
    return lambda test: getattr(pytest.mark, mark)(skip(test))


def marks_of(decorator):
    """Return the marks that such a decorator gives, for a single parameter of a test."""

    def marked():
        pass

    return decorator(marked).pytestmark


def needs_loops(package):
    """Return a decorator for tests of loops with this package and without Keras, in the environment of Keras 3."""
    needed = needs("keras", package, f"needs {package}: `make test` runs this in .nox/keras3")
    return lambda test: pytest.mark.loops(needed(test))


needs_theano = needs("theano", "theano", WHY["theano"])
needs_blocks = needs("blocks", "blocks", WHY["blocks"])


def needs_package(name, reason="tests/README.md says how to install it"):
    """Return a mark that skips a test where a package is missing."""
    there = importlib.util.find_spec(name.partition(".")[0]) and importlib.util.find_spec(name)
    return pytest.mark.skipif(not there, reason=f"needs {name}: {reason}")
