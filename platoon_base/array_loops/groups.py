"""Groups of parameters, and moments of optimizers, that a loop shares with a center."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from platoon_base.array_loops.trees import Tree, jax, tree_of
from platoon_base.errors import ConfigurationError
from platoon_base.worker import Worker, warn_once

Array = np.ndarray[Any, Any]


# The optimizers with these states compute the parameters from this field, not from those passed to them.
_ANCHORS = {
    "COCOBState": "init_particles",
    "MadgradState": "x0",
    "MechanicState": "x0",
    "SAMState": "cache",
    "ScheduleFreeState": "z",
}


class Group:
    """Parameters, and moments of an optimizer, that one kind of step changes."""

    def __init__(self, names: Sequence[str], arrays: Sequence[Array], moments: int) -> None:
        self.names, self.moments = names, moments
        self.arrays = [array.copy() for array in arrays]  # Those that the workers share.
        self.pending: list[Array] = []  # Changes since, which the next step of the group gets.
        self.is_fresh = True  # Whether the arrays are those of the latest step.

    @property
    def trained(self) -> int:
        return len(self.arrays) - self.moments


def places_of(
    groups_by_key: Mapping[Any, Group], trees: Sequence[dict[str, Array]], worker: Worker
) -> list[tuple[Group, tuple[int, str]]]:
    """Return which tree has the parameters of each group, and where in it.

    It is the first one with their names, else within a tree such as a TrainState; of several
    models with these names the nearest one.
    """
    alike: dict[Any, list[Group]] = {}
    for (_, shape), group in groups_by_key.items():
        alike.setdefault(shape, []).append(group)
    found = []
    for groups in alike.values():
        shapes = {name: array.shape for name, array in zip(groups[0].names[: groups[0].trained], groups[0].arrays)}
        one = next(iter(shapes))
        having = [
            (i, name.removesuffix(one))
            for i, tree in enumerate(trees)
            for name in tree
            if f"/{name}".endswith(f"/{one}")
        ]
        having = [
            (i, prefix)
            for i, prefix in having
            if all(prefix + name in trees[i] and trees[i][prefix + name].shape == shapes[name] for name in shapes)
        ]
        having = sorted(having, key=lambda place: place[1] != "")[: len(groups)]
        if len(groups) == 1:  # Distances would take as long as copies.
            found += [(groups[0], place) for place in having]
            continue
        apart = sorted(
            (sum(float(abs(a - trees[i][prefix + name]).sum()) for name, a in zip(shapes, group.arrays)), g, place)
            for g, group in enumerate(groups)
            for place, (i, prefix) in enumerate(having)
        )
        pairs: dict[int, int] = {}
        for _, g, place in apart:
            if g not in pairs and place not in pairs.values():
                pairs[g] = place
        # The first worker's choice counts.
        pairs = dict(worker.gather(list(pairs.items()), name="models of equal shapes")[0])
        found += [(groups[g], having[place]) for g, place in pairs.items()]
    return found


def require_assignable(state: Any) -> None:
    """Raise if the next step of an optimizer would undo values that parameters get from the center."""

    def is_anchored(each: Any) -> bool:
        return getattr(each, _ANCHORS.get(type(each).__name__, ""), None) is not None

    for each in _states_in(state, is_anchored):
        name = type(each).__name__
        raise ConfigurationError(
            f'got an optimizer with the state {name} and mode="async": at each step it computes the '
            f"parameters from its own {_ANCHORS[name]}, so the values of the center would be lost; "
            'pass another optimizer, or mode="sync" to prepare'
        )


def warn_of_own_losses(state: Any) -> None:
    """Warn if an optimizer changes its learning rate by the loss, which differs between workers."""
    if _states_in(state, lambda each: type(each).__name__ == "ReduceLROnPlateauState"):
        warn_once(
            'got reduce_on_plateau with mode="async": each worker gives it its own loss, so their learning rates '
            "drift apart. Give it the mean of all, that of the pass before: after each pass call "
            'loss = connect().reduce_metrics({"loss": (total, rows)})["loss"]; or pass mode="sync" to prepare'
        )


def _states_in(state: Any, chosen: Callable[[Any], bool]) -> list[Any]:
    found = jax().tree_util.tree_leaves(state, is_leaf=chosen) if jax() is not None else ()
    return [*filter(chosen, found)]


def moments_in(state: Any, params: Tree) -> Tree:
    """Return the moments: leaves named as a parameter, behind a prefix, and of its shape."""
    if state is None:
        return Tree([], [], lambda leaves: None)
    tree = tree_of(state).floats()
    shapes = dict(zip(params.names, map(np.shape, params.leaves)))
    ends = {name: f"/{name}" for name in params.names}
    chosen = []
    for i, (name, leaf) in enumerate(zip(tree.names, tree.leaves)):
        of = max((p for p, end in ends.items() if f"/{name}".endswith(end) or not p), key=len, default=None)
        if of is not None and shapes[of] == np.shape(leaf):
            chosen.append(i)
    return tree.only(chosen)


def real_parts(array: Array) -> Array:
    """Return complex numbers as pairs of floats, in the same memory."""
    return array.reshape(-1).view(array.real.dtype) if array.dtype.kind == "c" else array


def real_parts_of(array: Array | None) -> Array:
    return real_parts(np.asarray(array))
