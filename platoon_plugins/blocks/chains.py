"""What stands above what in a Fuel stream, and the random numbers that transformers draw."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from platoon_base.sharding import shard_seed

__all__ = ["chain_of", "vary_draws"]


def chain_of(stream: Any) -> Iterator[Any]:
    """Yield a stream and all those below it, of merged ones too."""
    yield stream
    for below in getattr(stream, "data_streams", None) or [getattr(stream, "data_stream", None)]:
        if below is not None:
            yield from chain_of(below)


def vary_draws(link: Any, rank: int) -> None:
    """Give a transformer generators of its own, whose numbers follow from those it had and the rank.

    That of rank 0 goes on with the numbers that one process draws.
    """
    for name, value in list(vars(link).items()) if rank else ():
        if isinstance(value, np.random.RandomState):
            drawn = copy.deepcopy(value).randint(2**31 - 1)
            setattr(link, name, np.random.RandomState(shard_seed(int(drawn), rank) % 2**32))
        elif isinstance(value, np.random.Generator):
            drawn = copy.deepcopy(value).integers(2**31 - 1)
            setattr(link, name, np.random.default_rng([int(drawn), rank]))
