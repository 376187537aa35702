"""The training of a loop of NumPy or JAX: what happens at its batches, averages and steps."""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platoon_base.array_loops.centers import LoopCenter
from platoon_base.array_loops.groups import moments_in, real_parts, require_assignable, warn_of_own_losses
from platoon_base.array_loops.places import Place
from platoon_base.array_loops.trees import (
    call_on_host,
    is_traced,
    jax,
    kind_of,
    on_host,
    same_as,
    tree_of,
)  # fmt: skip
from platoon_base.errors import ConfigurationError
from platoon_base.layout import Layout
from platoon_base.rules import default_period, prepared_rule
from platoon_base.worker import (
    BatchSizes,
    Header,
    HostAverage,
    State,
    Worker,
    agree,
    copy_first_values,
    default_rule_of,
    passes_before,
    require_same_layout,
    require_same_values,
    require_weight,
    start_training,
    warn_if_alike,
    warn_once,
)

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

_APART = (
    "pass the parameters to prepare, which copies those of the first worker, keep the loop the same on all, and let "
    "no optimizer decide by the loss of one worker"
)
_STEPS_OF_A_TRAINING = 20
_IGNORED = 50  # Programs may be queued ahead of the script.
_NEVER = {
    "sync": "was followed by no step that averages: train with the optimizer of optax that it "
    "returned, or call grads = average(grads) before each update",
    "async": "was followed by no step that synchronizes: train with the optimizer of optax that it "
    "returned, or call params = sync(params) after each update",
}


class Value:
    """An array with the methods of a shared variable, for first and common values."""

    def __init__(self, name: str, array: Array) -> None:
        self.name, self.array = name, array

    def get_value(self, borrow: bool = False) -> Array:
        return self.array

    def set_value(self, value: Any) -> None:
        self.array[...] = value


class Pass:
    """One pass over a loader; ``trained`` once a step followed one of its batches."""

    def __init__(self, batches: int | None) -> None:
        self.batches, self.trained = batches, False
        self.sizes = BatchSizes()


class Loop:
    """What prepared objects of one training share.

    ``rows`` are those of the latest batch that was read, 1 if no steps followed the batches of its
    pass. A compiled step reads them while it is traced, which JAX does for each size of a batch.
    """

    def __init__(self, worker: Worker, settings: Any) -> None:
        self.worker, self.settings = worker, settings
        self.mode, strategy, self._sync_every, scaling, on_nonfinite = settings
        self._given = prepared_rule(self.mode, strategy, self._sync_every, scaling)
        self.alone = worker.global_size == 1
        # Only the first training of a script is saved.
        self.epoch, self.rows, self.begun = 0 if current() else passes_before(worker), 1.0, False
        self.trained: list[str] = []  # What the summary names.
        self.prepared: collections.Counter[Any] = collections.Counter()  # Parameters, by names and shapes.
        self._open: list[Pass] = []
        self.sizes: BatchSizes | None = None  # Of the latest pass.
        self._read: Pass | None = None  # The latest one, if it has ended without a step.
        self._closed = False
        self._counted: Any = None  # The kind of steps that count, where a loop has several.
        self._met = False
        self._failure: Exception | None = None
        self.raised = False
        self._ignored = 0  # Calls of programs since the failure.
        self._host: HostAverage | None = None
        self.place = Place(worker, self._guarded)
        self._compared = False
        self._averaged: set[str] = set()  # Names of parameters whose gradients are averaged.
        self.center = LoopCenter(worker, self.place, self._given, self._sync_every, on_nonfinite)
        self.groups, self.fit, self.number_of = self.center.groups, self.center.fit, self.center.number_of
        steps = worker.advanced.activity[0]
        needed = lambda: worker.advanced.activity[0] >= steps + _STEPS_OF_A_TRAINING  # noqa: E731
        self._intent = worker.advanced.intend("prepare", _NEVER[self.mode], needed)
        worker.advanced.before_close = _settle_unless_raised

    # Batches.

    def draws(self, one: Pass, rows: int, kind: Any) -> None:
        self.require_sound()
        self.rows, self._read = float(rows), None
        self.sizes = one.sizes
        self.sizes.add(rows)
        if self.alone:
            self._steps(kind)  # The first kind of loader is that of the training.
        elif self.begun:
            self.worker.progress()
        else:  # A loop that never averages is warned of by its steps.
            self.worker.advanced.count_step()

    def pass_begins(self, batches: int | None) -> Pass:
        settle()
        self._open.append(Pass(batches))
        return self._open[-1]

    def pass_ends(self, one: Pass) -> None:
        self._open.remove(one)
        if not one.trained:  # The script evaluates, or keeps the batches, whose order it may change.
            self._read, self.rows = one, 1.0
        self._tell()

    def _tell(self) -> None:
        if self.begun and self.worker.is_leader:
            self.worker.report({"trained": self.describe()})

    def require_sound(self) -> None:
        """Raise the error of a call of a compiled program, whose own text would hide it."""
        if self._failure is None and self.place.device is not None:
            self._failure = self.place.device.failure()
        if self._failure is not None:
            self._ignored, self.raised = 0, True
            raise self._failure

    def _before(self, leaves: Sequence[Any]) -> None:
        """Raise what an earlier call on a device found; calls that end after the script's are awaited at the exit."""
        if not is_traced(leaves):
            self.require_sound()
        if is_traced(leaves) or self.place.device is not None:
            _wait_at_exit()

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function for programs; its error is raised by the next call of the script."""

        def call(*args: Any) -> Any:
            if self._failure is None:
                try:
                    return function(*args)
                except Exception as exc:
                    self._failure = exc
                    for loop in _current:  # Another one, if this one is closed.
                        loop._failure = exc
            self._ignored += 1
            if self._ignored > _IGNORED:  # The script makes no calls.
                raise self._failure
            return args[0]

        return call

    def _steps(self, kind: Any) -> None:
        """Count a step, and the pass over a loader in which it is the first."""
        if self._closed:
            raise ConfigurationError(
                "got a step of a training that another prepare has ended: pass all parameters and "
                "optimizers of a loop to prepare before its first step"
            )
        if not self.begun:
            self._counted = kind
        one = self._open[-1] if self._open else self._read
        if one is not None and not one.trained and kind == self._counted:
            self.epoch += 1
            self.worker.advanced.announce(epoch=self.epoch, epoch_steps=one.batches)
            one.trained = True
        first, self.begun = not self.begun, True
        self._intent.used = True
        if first:
            self._tell()
        if kind == self._counted:
            self.worker.advanced.count_step()

    def describe(self) -> str:
        epochs = f"{self.epoch} epoch{'s' * (self.epoch != 1)}" if self.epoch else ""
        return ", ".join(filter(None, [*self.trained, epochs, self.mode]))

    # Averaged gradients.

    def start(self, names: Sequence[str] = (), values: Sequence[Array] = ()) -> None:
        """Begin a training with averaged gradients, once; set values to those of the first worker."""
        variables = [Value(name, value) for name, value in zip(names, values)]
        if self._met:
            if variables:
                copy_first_values(variables, self.worker)
            return
        self._met = True
        start_training(self.worker, "averaged gradients", "loop with averaged gradients", values=variables)
        self.place.agree()

    def average(self, grads: Any, weight: float | None = None, number: int = 0, values: Sequence[Any] = ()) -> Any:
        """Return averaged gradients; ``number`` is that of a prepared optimizer.

        With ``values``, such as a loss, return the gradients and the averages of these.
        """
        if self.alone or self.mode != "sync":
            return (grads, *values) if values else grads
        tree = tree_of(grads).floats()
        if weight is None and self._read is not None and len(self._read.sizes.runs) > 1:
            warn_once(
                "got a step outside of a pass over a loader, so all workers' batches have equal weights, "
                "although their numbers of rows may differ: train in `for batch in loader`, or call "
                "average(grads, len(x))"
            )
        self._before(tree.leaves)
        self._averaged.update(tree.names)
        tree = tree.beside(values) if values else tree
        computed = [weight] if is_traced([weight]) else []  # The compiled step computes it.
        known = 0.0 if computed else _require_weight(self.rows if weight is None else weight)
        count, key = len(tree.leaves), (number, tree.shape)
        if not self._met:
            self.place.stay_on_host()
        if self._met and self.place.takes(tree.leaves):
            names = tree.names  # The call below lasts, and the gradients shall not.
            kinds = [(np.shape(leaf), np.float32 if leaf.dtype.kind == "V" else leaf.dtype) for leaf in tree.leaves]

            def begin(sample: Callable[[], Array]) -> None:
                self._steps(key)
                self.require_sound()
                if not self._compared:
                    self._compared = True
                    like = [np.broadcast_to(np.zeros((), dtype), shape) for shape, dtype in kinds]
                    self._compare(names, like, [sample()])

            given = weight if computed else known
            return tree.rebuild(self.place.device.average(key, tree.leaves, given, begin))

        def averaged(arrays: list[Array]) -> list[Array]:
            self._steps(key)
            self._average(key, tree.names, arrays[:count], _require_weight(arrays[-1]) if computed else known)
            return arrays

        return tree.rebuild(call_on_host(averaged, [*tree.leaves, *computed], self._guarded)[:count])

    def _average(self, key: Any, names: Sequence[str], arrays: list[Array], weight: float) -> None:
        reals, worker = [real_parts(array) for array in arrays], self.worker
        if self._host is None:
            self.start()
            self._compare(names, reals, reals)
            compresses = worker.advanced.compresses_gradients
            self._host = HostAverage(worker.all_reduce, worker.global_rank, worker.global_size, compresses)
        wide = next((x.dtype for x in reals if x.dtype.itemsize >= 4), np.float32)  # Travels with these.
        mine, everyones = (Header(worker.global_size, dtype=wide) for _ in range(2))
        residuals = [(key, i) for i in range(len(reals))] if self._host.compresses else ()
        self._host(reals, reals, weight, mine, everyones, names=residuals)

    def _compare(self, names: Sequence[str], arrays: Sequence[Array], values: Sequence[Array]) -> None:
        """Compare the first gradients of all workers, and their ``values``."""
        require_same_layout(Layout.of(arrays, names), self.worker)
        warn_if_alike(self.worker, values)
        self.place.warn("the gradients of each step", sum(array.nbytes for array in arrays))

    # A center.

    def sync(self, params: Any, state: Any = None, number: int = 0) -> Any:
        """Return the parameters, and the state of an optimizer, as synchronized with the center.

        ``number`` is that of a prepared optimizer, as several models may have equal shapes.
        """
        if self.alone or self.mode != "async":
            return params, state
        tree = tree_of(params).floats()
        if not tree.leaves:
            raise ConfigurationError("got no parameters of floats, so there is nothing to synchronize")
        key = number, tree.shape
        if key not in self.groups:
            require_assignable(state)
            warn_of_own_losses(state)
        if not number and self.prepared[tree.shape] > 1:
            raise ConfigurationError(
                f"got sync of parameters, and prepare got {self.prepared[tree.shape]} models with their names and "
                "shapes, which it cannot tell apart: call `p, q = sync((p, q))` once for all of them, or prepare an "
                "optimizer of optax for each. Do not prepare copies that are not trained"
            )
        self.place.look_at(tree.leaves)
        self._before(tree.leaves)
        moments = moments_in(state, tree)
        count, leaves = len(tree.leaves), [*tree.leaves, *moments.leaves]

        def synchronized(arrays: list[Array]) -> list[Array]:
            self._steps(key)
            self.center.synchronize(tree.names, arrays, moments.names, key)
            return arrays

        names, of_moments = tree.names, moments.names  # This call lasts, and the values shall not.

        def in_memory(arrays: Any) -> None:
            if not self._skips(key):
                self._steps(key)
                self.center.synchronize_there(names, arrays, of_moments, key)

        if self.place.takes(leaves):
            found = self.place.device.change((key, *moments.names), leaves, in_memory)
            return tree.rebuild(found[:count]), moments.rebuild(found[count:])
        period = default_period(self._given) if self._sync_every is None else self._sync_every
        skips = functools.partial(self._skips, key) if period > 1 else None
        found = call_on_host(synchronized, leaves, self._guarded, skips)
        return tree.rebuild(found[:count]), moments.rebuild(found[count:])

    def _skips(self, key: Any) -> bool:
        """Count a step after which nothing is due, and return True; False if something is."""
        if not self.center.skips(key):
            return False
        self._steps(key)
        self.fit.step()
        return True

    # Common values.

    def common(self, trees: Sequence[Any]) -> list[Any]:
        """Return the trees with values that are the same on all workers; a collective call."""
        settle()
        self._tell()
        if self.alone:
            return list(trees)
        found = [tree_of(tree) for tree in trees]
        values = [
            [on_host(leaf) if kind_of(leaf) in "fciub" and kind_of(leaf) else None for leaf in t.leaves] for t in found
        ]
        if self.mode == "async":
            known = self.center.synchronize_all(found, values)
        else:
            known = {(i, name) for i, tree in enumerate(found) for name in tree.names if name in self._averaged}
            same = [
                (tree.names[j], value)
                for i, tree in enumerate(found)
                for j, value in enumerate(values[i])
                if value is not None and (i, tree.names[j]) in known
            ]
            if same:
                require_same_values(self.worker, "the parameters of this loop", same, _APART)
        states = [
            State(Value(tree.names[j], value), default_rule_of(value.dtype))
            for i, tree in enumerate(found)
            for j, value in enumerate(values[i])
            if value is not None and (i, tree.names[j]) not in known
        ]
        if states:
            agree(states, self.worker, "common values")
        return [
            tree.rebuild([leaf if new is None else same_as(leaf, new) for leaf, new in zip(tree.leaves, values[i])])
            for i, tree in enumerate(found)
        ]

    def close(self) -> None:
        if not self.raised:
            settle()
        self.center.release()
        self.groups.clear()  # Calls of compiled programs keep this object.
        self._closed = True


def _require_weight(weight: Any) -> float:
    same = np.unique(weight)  # Models of an ensemble have one weight.
    return require_weight(same[0] if len(same) == 1 else np.nan)


_waits: list[bool] = []


def _wait_at_exit() -> None:
    """Let the programs that are under way end before this worker leaves the job."""
    if not _waits:
        _waits.append(True)
        atexit.register(_leave)


def settle() -> None:
    """Wait for the calls of JAX's programs that are under way."""
    if jax() is not None:
        with contextlib.suppress(Exception):  # Their results raise it.
            jax().effects_barrier()
    loop = current()
    if loop is not None and loop.place.device is not None:
        with contextlib.suppress(Exception):  # Likewise; programs of one device begin in their order.
            jax().block_until_ready([array for array in jax().live_arrays() if not array.is_deleted()])
            jax().block_until_ready([loop.place.device.latest, jax().numpy.zeros(1) + 1])
    if loop is not None:
        loop.require_sound()
        loop.center.finish()


def _settle_unless_raised() -> None:
    loop = current()
    if loop is not None and not loop.raised:
        settle()


def _leave() -> None:
    """At the exit, count this worker as failed if the script could not raise an error."""
    loop = current()
    if loop is None:
        return
    try:
        loop.worker.close()
    except Exception as exc:
        log.error("%s: %s", type(exc).__name__, exc)
        sys.stdout.flush()
        os._exit(1)  # The interpreter has its exit status already.


# The loop in which prepared objects take part.
_current: list[Loop] = []


def current() -> Loop | None:
    return _current[0] if _current else None


def begin(loop: Loop) -> None:
    """Make this the loop of all prepared objects; an earlier one ends."""
    before = current()
    if before is not None:
        before.close()
    _current[:] = [loop]
