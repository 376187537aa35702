"""Synchronous rules: all workers combine their arrays by one all-reduce in each step.

``reduce`` combines lists of arrays over the N workers in place, as `FlatAllReduce` does. All
workers call a rule equally often, on arrays of the same shapes and dtypes. Each worker has a
replica of the center; replicas that are equal at first stay equal bit by bit. A NaN or an infinity
of one worker reaches all workers. Theano versions are in
`platoon_base.platoon_api.global_dynamics`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.rules.easgd import EASGD

Reduce = Callable[[Sequence[Any], str], None]


def sum_sgd(updates: Sequence[Any], reduce: Reduce) -> None:
    """Replace each worker's updates by their sum over all workers."""
    reduce(updates, "sum")


def average_sgd(updates: Sequence[Any], reduce: Reduce) -> None:
    """Replace each worker's updates by their mean over all workers."""
    reduce(updates, "mean")


def easgd(local: Sequence[Array], center: Sequence[Array], alpha: float, reduce: Reduce) -> None:
    """Synchronous EASGD: ``d_i := alpha (x_i - c); x_i := x_i - d_i; c := c + sum_i d_i``."""
    # Zhang, Choromanska, LeCun, NIPS 2015, equations 2 and 3; the caller makes the gradient step.
    # The paper's alpha is 0.9/N. Above 1/N the center overshoots the mean of the workers; from
    # 2/(N+1) on, center and workers diverge.
    (alpha,) = EASGD(alpha).kernel_args()
    require_alike(local=local, center=center)
    d = [np.asarray(x.dtype.type(alpha) * (x - c), order="C") for x, c in zip(local, center)]
    for x, elastic in zip(local, d):
        x -= elastic
    reduce(d, "sum")
    for c, total in zip(center, d):
        c += total


def downpour(
    local: Sequence[Array], accumulated: Sequence[Array], center: Sequence[Array], reduce: Reduce, average: bool = False
) -> None:
    """Synchronous Downpour: ``c := c + sum_i u_i; x_i := c; u_i := 0``, or with the mean of u_i."""
    # Dean et al., NIPS 2012, section 4.1, with whole updates and with all workers at the same time.
    require_alike(local=local, accumulated=accumulated, center=center)
    reduce(accumulated, "mean" if average else "sum")
    for x, u, c in zip(local, accumulated, center):
        c += u
        x[...] = c
        u[...] = 0


def require_alike(**lists: Sequence[Any]) -> None:
    """Raise `ConfigurationError` unless these lists have the same length, shapes and dtypes."""
    (first, arrays), *others = lists.items()
    for name, other in others:
        mine, theirs = ([f"{a.dtype}{list(a.shape)}" for a in each] for each in (arrays, other))
        if mine != theirs:
            i = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs)))
            got, want = (each[i] if i < len(each) else "nothing" for each in (theirs, mine))
            raise ConfigurationError(
                f"got {got} as number {i} of {name}, and {want} in the same position of {first}: "
                "pass the lists in the same order, with the same shapes and dtypes"
            )
