"""Where the arrays of a Keras model on JAX are between two steps."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Place"]


class Place(NamedTuple):
    """Where an array is in the state that a step gets and returns.

    Attributes
    ----------
    number : int
        Of the list, in the order of `jax_state.STATE`.
    index : int
        In that list.
    """

    number: int
    index: int
