"""The places of the arrays of a Keras model on JAX between two steps."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Place"]


class Place(NamedTuple):
    """Index of an array in list ``number`` of the state of a step, see `jax_state.STATE`."""

    number: int
    index: int
