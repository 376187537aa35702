"""Different random numbers on each worker, as for dropout, inside Theano's compiled functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from theano.sandbox.rng_mrg import ff_2p134

from platoon_base.sharding import shard_seed

__all__ = ["vary_noise", "vary_noise_once"]


def vary_noise(shared_variables: Iterable[Any], rank: int) -> None:
    """Move the random streams among shared variables to numbers that no other rank draws."""
    if rank == 0:
        return
    for variable in shared_variables:
        value = variable.get_value()
        if isinstance(value, np.random.RandomState):
            value.seed(shard_seed(int(value.randint(2**31 - 1)), rank))
            variable.set_value(value)
        elif getattr(variable.tag, "is_rng", False):
            # This is a state of MRG31k3p. A user's integers may have the same shape.
            # Each rank is 2^134 numbers ahead of the previous one.
            rows = np.array(value)
            for row in rows:
                for _ in range(rank):
                    row[:] = ff_2p134(row)
            variable.set_value(rows)


def vary_noise_once(used: Iterable[Any], rank: int) -> None:
    """Call `vary_noise` for the random streams of a graph; a second call changes nothing."""
    fresh = [v for v in used if not getattr(v.tag, "varied_by_rank", False)]
    vary_noise(fresh, rank)
    for variable in fresh:
        if getattr(variable.tag, "is_rng", False) or isinstance(
            variable.get_value(borrow=True, return_internal_type=True), np.random.RandomState
        ):
            variable.tag.varied_by_rank = True
