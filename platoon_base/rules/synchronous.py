"""Synchronous rules: in each step all workers combine their arrays in one all-reduce, and then go on alike.

A rule is a pure function of arrays and of ``reduce``, which combines lists of arrays over the workers, in place:
a `platoon_base.worker.flat_all_reduce.FlatAllReduce`, or any other callable of that kind. Arrays are changed in place.

``sum_i`` runs over the workers, N is their number. All workers call a rule the same number of times, on arrays of the
same shapes and dtypes. Every worker keeps a replica of the center. The replicas stay equal bit by bit if
they begin equal: see `platoon_base.worker.initial_values.start_together`. A NaN or an infinity of one
worker reaches all of them, where it is seen.

The same rules as compiled functions on Theano shared variables, also on devices, are those of
`platoon_base.platoon_api.global_dynamics`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.rules.easgd import EASGD

__all__ = ["Reduce", "average_sgd", "downpour", "easgd", "sum_sgd"]

Array = np.ndarray[Any, Any]
Reduce = Callable[[Sequence[Any], str], None]


def sum_sgd(updates: Sequence[Any], reduce: Reduce) -> None:
    """Sum SGD: every worker takes the steps of all workers.

    ::

        u := sum_i u_i

    Parameters
    ----------
    updates : sequence of ndarray or GpuArray
        Gradients, or updates of the parameters.
    reduce : FlatAllReduce or callable
    """
    reduce(updates, "sum")


def average_sgd(updates: Sequence[Any], reduce: Reduce) -> None:
    """Average SGD: with equal mini-batches of B rows, the step of one process on a mini-batch of N B rows.

    ::

        u := 1/N sum_i u_i

    Parameters
    ----------
    updates : sequence of ndarray or GpuArray
        Gradients, or updates of the parameters.
    reduce : FlatAllReduce or callable
    """
    reduce(updates, "mean")


def easgd(local: Sequence[Array], center: Sequence[Array], alpha: float, reduce: Reduce) -> None:
    """Synchronous EASGD: springs pull all workers and the center towards each other at the same time.

    ::

        d_i := alpha (x_i - c)
        x_i := x_i - d_i
        c := c + sum_i d_i

    All sides use the values before the step, so ``c + sum_i x_i`` stays what it was.

    Parameters
    ----------
    local, center : sequence of ndarray, of the same shapes and float dtypes
        x_i, this worker's, and its replica of c.
    alpha : float in (0, 1]
        Strength of a spring: above 1/N all of them together throw the center past the mean of the workers, and from
        2/(N + 1) on they drive center and workers apart. The paper's choice is 0.9/N.
    reduce : FlatAllReduce or callable

    Raises
    ------
    ConfigurationError
        If alpha is outside (0, 1], or the arrays do not go together.

    References
    ----------
    Zhang, Choromanska, LeCun: Deep learning with Elastic Averaging SGD, NIPS 2015, equations 2 and 3, without the
    gradient step, which is the caller's.
    """
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
    """Synchronous Downpour: the accumulated updates of all workers go into the center, and all go on from there.

    ::

        g := sum_i u_i            (or 1/N sum_i u_i)
        c := c + g
        x_i := c
        u_i := 0

    Parameters
    ----------
    local, accumulated, center : sequence of ndarray, of the same shapes and float dtypes
        x_i and u_i, this worker's parameters and the sum of its updates of them since the last step, and its replica
        of c.
    reduce : FlatAllReduce or callable
    average : bool
        Whether the center moves by the mean of the updates instead of their sum.

    Raises
    ------
    ConfigurationError
        If the arrays do not go together.

    References
    ----------
    Dean et al.: Large scale distributed deep networks, NIPS 2012, section 4.1; here with whole updates instead of
    gradients, and with all workers at the same time.
    """
    require_alike(local=local, accumulated=accumulated, center=center)
    reduce(accumulated, "mean" if average else "sum")
    for x, u, c in zip(local, accumulated, center):
        c += u
        x[...] = c
        u[...] = 0


def require_alike(**lists: Sequence[Any]) -> None:
    """Raise `ConfigurationError` unless these lists of arrays have the same length, shapes and dtypes."""
    (first, arrays), *others = lists.items()
    for name, other in others:
        mine, theirs = ([f"{a.dtype}{list(a.shape)}" for a in each] for each in (arrays, other))
        if mine != theirs:
            i = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs)))
            got, want = (each[i] if i < len(each) else "nothing" for each in (theirs, mine))
            raise ConfigurationError(
                f"got {got} as number {i} of {name}, and {want} in its place of {first}: the lists go together one by "
                "one; pass them in the same order, with the same shapes and dtypes"
            )
