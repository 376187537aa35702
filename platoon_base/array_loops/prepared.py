"""`prepare`, after which a loop of NumPy or JAX trains one model on several workers.

Importing this module seeds generators alike on all workers, see `platoon_base.seeds.seed_alike`.
"""

from __future__ import annotations

import copy
import itertools
import random
import sys
from typing import Any

import numpy as np

from platoon_base.array_loops.loaders import Dealt, is_loader, numbers
from platoon_base.array_loops.loops import Loop, begin, current, settle
from platoon_base.array_loops.trees import is_traced, jax, kind_of, on_host, same_as, tree_of
from platoon_base.errors import ConfigurationError
from platoon_base.job import connect
from platoon_base.learning_rate import scaled
from platoon_base.rules import Rule, prepared_rule
from platoon_base.seeds import seed_alike
from platoon_base.worker import Worker, begins_anew, require_on_nonfinite, require_same_values


def prepare(
    *objects: Any,
    mode: str = "async",
    strategy: Rule | None = None,
    sync_every: int | None = None,
    scaling: str | float | None = None,
    on_nonfinite: str = "raise",
    worker: Worker | None = None,
) -> Any:
    """Make the script's own loop train one model on all workers.

    ::

        params, optimizer, loader = prepare(params, optimizer, loader)

    Call it on all workers, with the objects of the loop in any order:

    - Parameters: arrays of NumPy or JAX, nested in lists and dicts, modules of Flax NNX, of
      Equinox, or any other pytree. With "sync" all get the first worker's values.
    - An optimizer of optax, an ``nnx.Optimizer``, or a ``TrainState`` of Flax. With "sync" its
      ``update`` averages the gradients first; with "async" it synchronizes the parameters with a
      center. Both work within ``jit`` and ``scan``.
    - A loader: anything that yields batches, such as `batches` or a dataset of grain. It yields
      this worker's rows, without repeats, in equally many batches on all workers.

    Without optax call `average` or `sync`. Under plain ``python`` nothing changes.

    Parameters
    ----------
    *objects : pytree, optimizer or loader
        Any number of each.
    mode : {"async", "sync"}
        Synchronize with a center, each worker at its own speed, or average the gradients of each
        step.
    strategy : Rule, optional
        A rule such as `EASGD` or `DiLoCo`, with "async"; see `default_rule`.
    sync_every : int, optional
        Steps from one synchronization to the next, with "async".
    scaling : {"none", "linear", "sqrt"} or float, optional
        With "sync", the factor of the updates of optimizers for N workers; "none" by default. With
        "async", a number s for `AveragedEASGD`, whose steps are ``s sqrt(N)`` times as long, or
        "none"; 2 by default.
    on_nonfinite : {"raise", "skip", "restore"}
        With "async", see `Worker.init_shared_params`.
    worker : Worker, optional
        The default is ``connect()``.

    Returns
    -------
    object or tuple
        The objects in the order given.

    Raises
    ------
    ConfigurationError
        If the arguments cannot work.
    """
    prepared_rule(mode, strategy, sync_every, scaling)
    require_on_nonfinite(on_nonfinite)
    kinds = [_kind(each) for each in objects]
    worker = connect() if worker is None else worker
    if worker.global_size == 1 and not worker.advanced.launched:
        made = list(objects)
    else:
        loop = _loop_for(kinds, worker, (mode, strategy, sync_every, scaling, on_nonfinite))
        made = [_PREPARES[kind](each, loop) for each, kind in zip(objects, kinds)]
    return made[0] if len(made) == 1 else tuple(made)


def average(grads: Any, weight: float | None = None) -> Any:
    """Return the mean of all workers' gradients, weighted by rows; with "async", ``grads``.

    ::

        g := sum_i w_i g_i / sum_i w_i

    Call it on all workers, in each step, within ``jit`` or not.

    Parameters
    ----------
    grads : pytree of arrays
    weight : float, optional
        The w_i: the divisor of this worker's loss, such as ``len(x)`` or ``mask.sum()``. The default
        is the number of rows of the latest batch of a prepared loader, or 1.
    """
    return _loop().average(grads, weight)


def sync(params: Any, state: Any = None) -> Any:
    """Return the parameters as synchronized with the center; with "sync", ``params``.

    Call it after each step, within ``jit`` or not. The rule's period determines at which steps it
    synchronizes. Arrays of NumPy also change in place.

    Parameters
    ----------
    params : pytree of arrays
    state : pytree, optional
        The state of an optimizer of optax. Rules such as `AveragedEASGD` share its moments.

    Returns
    -------
    pytree, or two
        The parameters, and the state if one was passed.
    """
    found = _loop().sync(params, state)
    return found[0] if state is None else found


def common(*trees: Any) -> Any:
    """Return values that all workers have in common; a collective call, at the end of each pass.

    With "async" parameters become those of the center, once all workers have called; continue
    training from them. With "sync" they are equal already, else it raises. Other values, such as
    statistics of BatchNorm, become their mean. A module of NNX, and arrays of NumPy, change in
    place.

    Parameters
    ----------
    *trees : pytree of arrays
        Such as the parameters, and statistics.
    """
    loop = _loop()
    found = [_kept(each, new) for each, new in zip(trees, loop.common(trees))]
    return found[0] if len(found) == 1 else tuple(found)


def _loop() -> Loop:
    loop = current()
    if loop is None:
        if connect().global_size > 1:
            raise ConfigurationError("got no loop: call prepare(...) before average, sync and common")
        loop = Loop(connect(), ("async", None, None, None, "raise"))
    return loop


def _loop_for(kinds: list[str], worker: Worker, settings: Any) -> Loop:
    loop = current()
    if loop is not None and not loop.raised:
        settle()  # Then it knows of all its steps.
    if begins_anew(loop, worker, settings, trains=bool(set(kinds) - {"loader"})) or loop is None:
        loop = Loop(worker, settings)
        begin(loop)
        if worker.global_rank:  # Other noise than on the first worker.
            random.seed(worker.shard_seed)
            np.random.seed(worker.shard_seed % 2**32)
    return loop


def _kind(each: Any) -> str:
    if _is_optax(each) or callable(getattr(each, "gradient_transformation", None)):
        return "optimizer"
    if hasattr(each, "tx") and (callable(getattr(each, "replace", None)) or _is_nnx(each)):
        return "holder"
    if isinstance(each, Dealt):
        return "dealt"
    if is_loader(each):
        return "loader"
    if not tree_of(each).floats().leaves:
        raise ConfigurationError(
            f"got {type(each).__name__} without arrays of floats: pass parameters, optimizers of "
            "optax, and loaders, which yield batches"
        )
    return "params"


def _is_optax(each: Any) -> bool:
    return isinstance(each, tuple) and getattr(each, "_fields", ()) == ("init", "update")


def _is_nnx(each: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return (nnx is not None and isinstance(each, nnx.Module)) or type(each).__module__.startswith("flax.nnx")


def _prepare_params(params: Any, loop: Loop) -> Any:
    loop.trained.append(_described(params))
    loop.prepared[tree_of(params).floats().shape] += 1
    return params if loop.alone else _first_values(params, loop)


def _first_values(given: Any, loop: Loop) -> Any:
    """Return values of the first worker, with averaged gradients, and other keys on each worker."""
    tree = tree_of(given)
    leaves = list(tree.leaves)
    loop.place.look_at(leaves)
    if loop.mode == "sync":
        chosen = [i for i, leaf in enumerate(leaves) if kind_of(leaf) in ("f", "c", "i", "u", "b")]
        values = [_exchanged(on_host(leaves[i])) for i in chosen]
        loop.start([tree.names[i] for i in chosen], values)
        for i, value in zip(chosen, values):
            host = on_host(leaves[i])
            value = value.view(host.dtype).reshape(host.shape) if host.dtype.kind == "c" else value
            leaves[i] = same_as(leaves[i], value.astype(host.dtype))
    for i, leaf in enumerate(leaves):
        if kind_of(leaf) == "key" and loop.worker.global_rank:  # Other noise than on the first worker.
            leaves[i] = jax().random.fold_in(leaf, loop.worker.global_rank)
    return _kept(given, tree.rebuild(leaves))


def _exchanged(array: Any) -> Any:
    """Return a value in a dtype that collective calls take, without loss."""
    if array.dtype.kind == "c":
        return array.reshape(-1).view(array.real.dtype)
    if array.dtype.kind == "b":
        return array.astype(np.uint8)
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def _described(params: Any) -> str:
    plain = isinstance(params, (dict, list, tuple)) or hasattr(params, "dtype")
    count = sum(np.size(leaf) for leaf in tree_of(params).floats().leaves)
    return f"{'parameters' if plain else type(params).__name__} of {count:,}"


def _kept(before: Any, new: Any) -> Any:
    """Return a module of NNX with new values, as optimizers and scripts refer to it; else ``new``."""
    if not _is_nnx(before) or not hasattr(sys.modules["flax.nnx"], "update"):
        return new
    nnx = sys.modules["flax.nnx"]
    nnx.update(before, nnx.state(new))
    return before


def _prepare_optimizer(optimizer: Any, loop: Loop) -> Any:
    if hasattr(optimizer.update, "platoon_prepared") or loop.alone:
        return optimizer
    given, optax, number = optimizer, sys.modules["optax"], next(_optimizers)
    if not _is_optax(given):  # MultiSteps is an example.
        optimizer = given.gradient_transformation()
    optimizer = optax.with_extra_args_support(optimizer)
    worker, mode, how = loop.worker, loop.mode, loop.settings[3]
    factor = scaled(1.0, worker.global_size, str(how)) if mode == "sync" and how is not None else 1.0

    def init(params: Any) -> Any:
        nonlocal number
        leaves = tree_of(params).floats()
        if leaves.leaves and not is_traced(leaves.leaves):
            number = loop.number_of(leaves.leaves[0], number)
        loop.place.look_at(leaves.leaves)
        if mode == "sync" and not is_traced(leaves.leaves):
            settle()
            loop.start()
            values = [(name, on_host(leaf)) for name, leaf in zip(leaves.names, leaves.leaves)]
            require_same_values(
                worker, "the parameters of this loop", values,
                "pass them to prepare, which copies the first worker's, or use the same PRNG key on all workers",
            )  # fmt: skip
        return optimizer.init(params)

    def update(grads: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        if mode == "sync":
            if "value_fn" in extra:
                raise ConfigurationError(
                    "got value_fn, so a line search would see the loss of this worker's rows alone, and models would "
                    "come to differ: pass an optimizer without one, such as optax.lbfgs(0.1, linesearch=None)"
                )
            if "value" in extra:  # Some optimizers decide by the loss.
                grads, extra["value"] = loop.average(grads, None, number, [jax().numpy.asarray(extra["value"])])
            else:
                grads = loop.average(grads, None, number)
            updates, state = optimizer.update(grads, state, params, **extra)
            return updates if factor == 1.0 else _mapped(lambda u: u * factor, updates), state
        if params is None:
            raise ConfigurationError(
                "got optimizer.update without parameters, which it synchronizes with the center: "
                "call optimizer.update(grads, state, params)"
            )
        updates, state = optimizer.update(grads, state, params, **extra)
        before, changes = tree_of(params).floats(), tree_of(updates).floats()
        by_name = dict(zip(changes.names, changes.leaves))
        new = [
            p + by_name[name].astype(p.dtype) if name in by_name else p for name, p in zip(before.names, before.leaves)
        ]
        new, state = loop.sync(dict(zip(before.names, new)), state, number)
        old = dict(zip(before.names, before.leaves))
        return changes.rebuild([new[name] - old[name] for name in changes.names]), state

    update.platoon_prepared = True  # type: ignore[attr-defined]
    if _is_optax(given):
        return optax.GradientTransformationExtraArgs(init, update)
    made = copy.copy(given)
    made.init, made.update = init, update
    return made


def _mapped(function: Any, tree: Any) -> Any:
    found = tree_of(tree).floats()
    return found.rebuild([function(leaf) for leaf in found.leaves])


def _prepare_holder(holder: Any, loop: Loop) -> Any:
    """Prepare what holds an optimizer: nnx.Optimizer, or TrainState with its parameters."""
    if not _is_nnx(holder):
        loop.trained.append(_described(holder.params))
    holder = holder if loop.alone else _first_values(holder, loop)
    optimizer = _prepare_optimizer(holder.tx, loop)
    if _is_nnx(holder):
        holder.tx = optimizer
        return holder
    return holder.replace(tx=optimizer)


def _prepare_loader(loader: Any, loop: Loop) -> Any:
    return Dealt(loader, loop.worker, next(numbers))


def _prepared_already(each: Any, loop: Loop) -> Any:
    return each


_optimizers = itertools.count(1)
_PREPARES = {
    "params": _prepare_params,
    "optimizer": _prepare_optimizer,
    "holder": _prepare_holder,
    "loader": _prepare_loader,
    "dealt": _prepared_already,
}

if connect().global_size > 1:
    seed_alike(connect().seed)
