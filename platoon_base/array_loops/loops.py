"""The training of a loop of NumPy or JAX: what happens at its batches, averages and steps."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from platoon_base.array_loops.groups import Group, moments_in, places_of, real_parts, real_parts_of
from platoon_base.array_loops.trees import (
    Tree,
    call_on_host,
    has_gpu,
    is_traced,
    jax,
    kind_of,
    on_host,
    same_as,
    tree_of,
)  # fmt: skip
from platoon_base.errors import ConfigurationError, LayoutMismatchError
from platoon_base.fingerprint import checksum
from platoon_base.layout import Layout
from platoon_base.rules import default_period, gossips, prepared_rule, rule_for_loop, shares_moments, waits
from platoon_base.worker import (
    Fit,
    FlatAllReduce,
    State,
    Worker,
    agree,
    copy_first_values,
    default_rule_of,
    require_same_values,
    require_weight,
    start_training,
    warn_if_alike,
    warn_once,
)

__all__ = ["Loop", "begin", "current", "settle"]

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

_APART = "pass the parameters to prepare, which copies those of the first worker, and keep the loop the same on all"
_STEPS_OF_A_TRAINING = 20
ON_DEVICE = False
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


class Shared:
    """An array as a parameter of a center; see `platoon_base.parameters.Parameter`.

    It is a copy on the host, also of values on a device.
    """

    def __init__(self, name: str, array: Array) -> None:
        self.name, self._array = name, array

    def borrow(self) -> Array:
        return self._array

    def give_back(self, array: Array) -> None:
        if array is not self._array:
            self._array[...] = array

    def memory(self) -> Array:
        return self._array

    def on_device(self) -> None:
        return None


class Pass:
    """One pass over a loader; ``trained`` once a step followed one of its batches."""

    def __init__(self, batches: int | None) -> None:
        self.batches, self.trained = batches, False
        self.sizes: set[int] = set()


class Loop:
    """What prepared objects of one training share.

    ``rows`` are those of the latest batch that was read, 1 if no steps followed the batches of its
    pass. A compiled step reads them while it is traced, which JAX does for each size of a batch.
    """

    def __init__(self, worker: Worker, settings: Any) -> None:
        self.worker, self.settings = worker, settings
        self.mode, strategy, self._sync_every, scaling, self._on_nonfinite = settings
        self._given = prepared_rule(self.mode, strategy, self._sync_every, scaling)
        self.alone = worker.global_size == 1
        self.epoch, self.rows, self.begun = 0, 1.0, False
        self.trained: list[str] = []  # What the summary names.
        self._open: list[Pass] = []
        self._read: Pass | None = None  # The latest one, if it has ended without a step.
        self._closed = False
        self._counted: Any = None  # The kind of steps that count, where a loop has several.
        self._met = False
        self._failure: Exception | None = None
        self.raised = False
        self._ignored = 0  # Calls of programs since the failure.
        self._unit = 0.0
        self._sums: FlatAllReduce | None = None
        self.device: Any = None  # An `on_device.Device`, where values stay in the memory of a GPU.
        self._through_host = ""  # Why they do not.
        self._looked = self._compared = False
        self._on_device: Any = None  # The module, which needs JAX.
        self._lent: Any = None  # The parameters of a center, if those of one group are in it, on a device.
        self._mixed = False  # Whether two optimizers have the same parameters.
        self._averaged: set[str] = set()  # Names of parameters whose gradients are averaged.
        self.groups: dict[Any, Group] = {}
        self._begun_with: list[tuple[Any, int]] = []  # A parameter of each optimizer, with its number.
        self._last: Any = None  # The group after whose steps the workers synchronize.
        self.fit = Fit(worker)
        steps = worker.advanced.activity[0]
        needed = lambda: worker.advanced.activity[0] >= steps + _STEPS_OF_A_TRAINING  # noqa: E731
        self._intent = worker.advanced.intend("prepare", _NEVER[self.mode], needed)

    # Batches.

    def draws(self, one: Pass, rows: int, kind: Any) -> None:
        self.require_sound()
        self.rows, self._read = float(rows), None
        one.sizes.add(rows)
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
        if self._failure is None and self.device is not None:
            self._failure = self.device.failure()
        if self._failure is not None:
            self._ignored, self.raised = 0, True
            raise self._failure

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

    # Devices.

    def look_at(self, leaves: Sequence[Any]) -> None:
        """Let values stay on the device of the parameters, if it can be; the first call decides."""
        if self._looked:
            return
        self._looked, module = True, jax()
        if self.alone or not has_gpu():
            return
        if not ON_DEVICE or not hasattr(module, "ffi"):
            self._through_host = "by jax's io_callback" if hasattr(module, "ffi") else "install jax>=0.5"
            return
        self._on_device = importlib.import_module("platoon_base.array_loops.on_device")
        ordinal = self._on_device.cuda_device()
        if ordinal is None:
            self._through_host = "a worker needs one CUDA device, start it by platoon launch -D cuda0 cuda1"
        elif not self._on_device.Device.takes([leaf for leaf in leaves if isinstance(leaf, module.Array)]):
            self._through_host = "parameters are on another device, or on several"
        else:
            self.device = self._on_device.Device(self.worker, ordinal, self._guarded)

    def _warn_of_host_memory(self, what: str, nbytes: int) -> None:
        if self._through_host:
            warn_once(
                f"{what}, {nbytes / 1e6:.3g} MB, pass through host memory, about 1 to 5 ms for each MB "
                f"({self._through_host}): exchange less often, by prepare(..., sync_every=10) or strategy=DiLoCo()"
            )

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
        self._looked = True  # What the workers agree on now holds for all steps.
        on_devices = self.worker.gather(self.device is not None, name="where gradients are averaged")
        if self.device is not None and not all(on_devices):
            self.device, self._through_host = None, "those of another worker do"
        elif self.device is not None:
            self.device.sums = self.worker.advanced.device_all_reduce(self.device.ordinal)
            if self.device.sums is None:
                self._through_host = "NCCL is not installed, or workers share a device"

    def average(self, grads: Any, weight: float | None = None, number: int = 0) -> Any:
        """Return averaged gradients; ``number`` is that of a prepared optimizer."""
        if self.alone or self.mode != "sync":
            return grads
        tree = tree_of(grads).floats()
        if weight is None and self._read is not None and len(self._read.sizes) > 1:
            warn_once(
                "got a step outside of a pass over a loader, so all workers' batches have equal weights, "
                "although their numbers of rows may differ: train in `for batch in loader`, or call "
                "average(grads, len(x))"
            )
        _wait_at_exit(tree.leaves)
        self._averaged.update(tree.names)
        computed = [weight] if is_traced([weight]) else []  # within the compiled step
        known = 0.0 if computed else _require_weight(self.rows if weight is None else weight)
        count, key = len(tree.leaves), (number, tree.shape)
        if not (self._met or self._looked):
            self._looked, self._through_host = True, "prepare got no parameters" if has_gpu() else ""
        if self.device is not None and self._met and self.device.takes(tree.leaves):
            begin = functools.partial(self._begins_sums, key, tree.names, [(np.shape(a), a.dtype) for a in tree.leaves])
            return tree.rebuild(self.device.average(key, tree.leaves, weight if computed else known, begin))

        def averaged(arrays: list[Array]) -> list[Array]:
            self._steps(key)
            self._average(tree.names, arrays[:count], _require_weight(arrays[-1]) if computed else known)
            return arrays

        return tree.rebuild(call_on_host(averaged, [*tree.leaves, *computed], self._guarded)[:count])

    def _average(self, names: Sequence[str], arrays: list[Array], weight: float) -> None:
        reals = [real_parts(array) for array in arrays]
        if self._sums is None:
            self.start()
            self._unit = self._compare(names, reals, reals, weight) or 1.0
            self._sums = FlatAllReduce(self.worker, compress=True)
        factor = weight / self._unit
        header = np.array([factor], next((x.dtype for x in reals if x.dtype.itemsize >= 4), np.float32))
        compresses = self.worker.advanced.compresses_gradients
        if compresses:  # The weights stay exact.
            header = self.worker.all_reduce(header)
            factor /= float(header[0]) or 1.0
        for array in reals:
            if factor != 1.0:
                array *= factor
            if not weight:
                array[...] = 0
        if compresses:
            self._sums(reals)
            return
        self._sums([*reals, header])
        total = float(header[0])
        for array in reals:
            if total not in (0.0, 1.0):
                array /= total

    def _compare(self, names: Sequence[str], arrays: Sequence[Array], values: Sequence[Array], weight: float) -> float:
        """Compare the first gradients of all workers, and their ``values``; return the largest weight."""
        layout, mark = Layout.of(arrays, names).fingerprint.hex(), 0
        for array in values:
            mark = checksum(array, mark)
        told = self.worker.gather([weight, layout, mark if any(x.any() for x in values) else 0], name="gradients")
        if len({layout for _, layout, _ in told}) > 1:
            raise LayoutMismatchError("the gradients of this worker have other names, shapes or dtypes than others'")
        warn_if_alike([each for _, _, each in told], self.worker.global_rank)
        self._warn_of_host_memory("the gradients of each step", sum(array.nbytes for array in arrays))
        return max(float(given) for given, _, _ in told)

    def _begins_sums(
        self, key: Any, names: Sequence[str], kinds: Sequence[tuple[Any, Any]], sample: Callable[[], Array]
    ) -> None:
        """Begin the sums of a step in a program."""
        self._steps(key)
        failure = self.device.failure()
        if failure is not None:
            raise failure
        if not self._compared:
            self._compared = True
            like = [np.broadcast_to(np.zeros((), np.float32 if d.kind == "V" else d), shape) for shape, d in kinds]
            self._compare(names, like, [sample()], 0.0)

    # A center.

    def number_of(self, leaf: Any, number: int) -> int:
        """Return the number of the first optimizer whose state was made for the same parameters."""
        for known, of in self._begun_with:
            if known is leaf:
                self._mixed |= of != number
                return of
        self._begun_with.append((leaf, number))
        return number

    def sync(self, params: Any, state: Any = None, number: int = 0) -> Any:
        """Return the parameters, and the state of an optimizer, as synchronized with the center.

        ``number`` is that of a prepared optimizer, as several models may have equal shapes.
        """
        if self.alone or self.mode != "async":
            return params, state
        tree = tree_of(params).floats()
        if not tree.leaves:
            raise ConfigurationError("got no parameters of floats, so there is nothing to synchronize")
        _wait_at_exit(tree.leaves)
        self.look_at(tree.leaves)
        moments = moments_in(state, tree)
        count, key, leaves = len(tree.leaves), (number, tree.shape), [*tree.leaves, *moments.leaves]

        def synchronized(arrays: list[Array]) -> list[Array]:
            self._steps(key)
            self._synchronize(tree.names, arrays, moments.names, key)
            return arrays

        def in_memory(arrays: Any) -> None:
            if not self._skips(key):
                self._steps(key)
                self._synchronize_there(tree.names, arrays, moments.names, key)

        if self.device is not None and self.device.takes(leaves):
            found = self.device.change((key, *moments.names), leaves, in_memory)
            return tree.rebuild(found[:count]), moments.rebuild(found[count:])
        period = default_period(self._given) if self._sync_every is None else self._sync_every
        skips = functools.partial(self._skips, key) if period > 1 else None
        found = call_on_host(synchronized, leaves, self._guarded, skips)
        return tree.rebuild(found[:count]), moments.rebuild(found[count:])

    def _skips(self, key: Any) -> bool:
        """Count a step after which nothing is due, and return True; False if something is."""
        if self.fit.rule is None or key != self._last or self.groups[key].pending or self.fit.is_last_step:
            return False
        self._steps(key)
        self.fit.step()
        return True

    def _synchronize_there(self, names: list[str], arrays: Any, moments: list[str], key: Any) -> None:
        """Synchronize arrays in the memory of a device; by copies, unless there is a center for one group."""
        if self.fit.rule is None and [*self.groups] == [key]:
            self._share_there(arrays, key)
        elif self._lent is not None and key in self.groups:
            with self._lent.lend(arrays):
                self.fit.step()
        if self._lent is None or key not in self.groups:
            values = [np.asarray(array) for array in arrays]
            self._synchronize(names, values, moments, key)
            for array, value in zip(arrays, values):
                array[...] = value

    def _share_there(self, arrays: Any, key: Any) -> None:
        """Share parameters in the memory of a device, if the center can be there."""
        group = self.groups[key]
        rule, period = rule_for_loop(self._given, self._sync_every, [array.dtype for array in group.arrays])
        self._through_host = "the center is in host memory"
        if self._mixed or waits(rule) or gossips(rule):
            return
        count = len(group.arrays) if shares_moments(rule) else group.trained
        lent = self._on_device.Lent(group.names[:count])
        parameters, moments = lent.parameters[: group.trained], lent.parameters[group.trained :]
        with lent.lend(arrays):
            if self.worker.advanced.center_stays_on_device([*parameters, *moments], rule):
                moments = moments if shares_moments(rule) else None
                self.worker.init_shared_params(parameters, rule, moments=moments, on_nonfinite=self._on_nonfinite)
                self.fit.begin(rule, period)
                self._lent, self._last = lent, key

    def _synchronize(self, names: list[str], arrays: list[Array], moments: list[str], key: Any) -> None:
        reals = [real_parts(array) for array in arrays]
        group = self.groups.get(key)
        if group is not None and self._lent is not None:
            raise ConfigurationError(f"got {names[0]} on the host, and on the device before: keep parameters there")
        if group is None:
            self._release()  # Parameters that had no step before are shared too.
            self.groups[key] = Group([*names, *moments], reals, len(moments))
            return
        if self.fit.rule is None:
            _copy(group.arrays, reals)
            group.is_fresh = True
            if all(each.is_fresh for each in self.groups.values()):
                self._share(key)
        else:
            for pending, array in zip(group.pending, reals):
                array += pending
            group.pending = []
            _copy(group.arrays, reals)
            if key == self._last:
                self._step()
        _copy(reals, group.arrays)

    def _step(self) -> None:
        others = [group for key, group in self.groups.items() if key != self._last]
        before = [[array.copy() for array in group.arrays] for group in others]
        self.fit.step()
        self._leave_pending(others, before)

    def _leave_pending(self, groups: Sequence[Group], before: Sequence[Sequence[Array]]) -> None:
        for group, values in zip(groups, before):
            changes = [array - value for array, value in zip(group.arrays, values)]
            group.pending = [a + b for a, b in zip(group.pending, changes)] if group.pending else changes

    def _share(self, last: Any) -> None:
        named = [
            (Shared(f"{number}/{name}" if len(self.groups) > 1 else name, array), i >= group.trained)
            for number, group in enumerate(self.groups.values())
            for i, (name, array) in enumerate(zip(group.names, group.arrays))
        ]
        dtypes = [each.memory().dtype for each, _ in named]
        rule, period = rule_for_loop(self._given, self._sync_every, dtypes)
        parameters = [each for each, is_moment in named if not is_moment]
        moments = [each for each, is_moment in named if is_moment] if shares_moments(rule) else None
        others = [group for key, group in self.groups.items() if key != last]
        before = [[array.copy() for array in group.arrays] for group in others]
        self.worker.init_shared_params(parameters, rule, moments=moments, on_nonfinite=self._on_nonfinite)
        if len(self.groups) > 1 and self.device is not None:
            self._through_host = "there are several optimizers or models"
        self._warn_of_host_memory(
            "all parameters of each synchronization", sum(each.memory().nbytes for each, _ in named)
        )
        self.fit.begin(rule, period)
        self._leave_pending(others, before)
        self._last = last

    def _release(self) -> None:
        if self.fit.rule is not None:
            self.worker.release_shared_params()
            self.fit.rule = None
        if self._lent is not None:
            self.groups[self._last].is_fresh, self._lent = False, None

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
            known = self._of_center(found, values)
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

    def _of_center(self, found: Sequence[Tree], values: Sequence[Sequence[Array | None]]) -> set[tuple[int, str]]:
        """Set the values of shared parameters to those of the center; return which they are."""
        if not self.groups:
            return set()
        places: dict[tuple[int, str], Array] = {}
        named = [dict(zip(tree.names, map(real_parts_of, each))) for tree, each in zip(found, values)]
        for group, (i, prefix) in places_of(self.groups, named, self.worker):
            for name, shared in zip(group.names[: group.trained], group.arrays):
                shared[...] = named[i][prefix + name]
                places[i, prefix + name] = shared
            group.pending = []
        if self._lent is not None and not places:
            return set()
        first = next(iter(self.groups))
        if self.fit.rule is None and self.device is not None and len(self.groups) == 1:
            arrays = self.groups[first].arrays
            self._share_there(self._on_device.Copies(arrays, len(arrays)), first)
        if self.fit.rule is None:
            self._share(first)
        with self._lent_copies(first) as there:
            self.fit.synchronize(whole=True)
            center = self.worker.advanced.served()
            if there and center is not None:
                center.finish()
            self.worker.barrier("the end of a pass")
            self.worker.average_hosts()
            self.worker.copy_to_local()
        _copy(list(places.values()), list(map(np.asarray, there)))
        for group in self.groups.values():
            group.pending = []
        for (i, name), array in places.items():
            real_parts_of(values[i][found[i].names.index(name)])[...] = array
        return set(places)

    @contextlib.contextmanager
    def _lent_copies(self, key: Any) -> Iterator[Sequence[Any]]:
        """Lend the center copies of the parameters on a device, if it is there; yield them, without moments."""
        if self._lent is None:
            yield ()
            return
        group = self.groups[key]
        copies = self._on_device.Copies(group.arrays, group.trained)
        with self._lent.lend(copies):
            yield copies[: group.trained]

    @property
    def moments(self) -> list[str]:
        """The names of the moments that the workers share."""
        return [name for group in self.groups.values() for name in group.names[group.trained :]]

    def close(self) -> None:
        if self._failure is None:
            settle()
        self._release()
        self._closed = True


def _copy(to: Sequence[Array], values: Sequence[Array]) -> None:
    for array, value in zip(to, values):
        array[...] = value


def _require_weight(weight: Any) -> float:
    same = np.unique(weight)  # Models of an ensemble have one weight.
    return require_weight(same[0] if len(same) == 1 else np.nan)


_waits: list[bool] = []


def _wait_at_exit(leaves: Sequence[Any]) -> None:
    """Let the programs that are under way end before this worker leaves the job."""
    if not _waits and is_traced(leaves):
        _waits.append(True)
        atexit.register(_leave)


def settle() -> None:
    """Wait for the calls of JAX's programs that are under way."""
    if jax() is not None:
        with contextlib.suppress(Exception):  # Their results raise it.
            jax().effects_barrier()
    loop = current()
    if loop is not None and loop.device is not None:
        with contextlib.suppress(Exception):  # Likewise; the results of the latest step are alive.
            jax().block_until_ready([array for array in jax().live_arrays() if not array.is_deleted()])
    if loop is not None:
        loop.require_sound()


def _leave() -> None:
    """At the exit, count this worker as failed if the script could not raise an error."""
    loop = current()
    if loop is None or loop.raised:
        return
    try:
        settle()
    except Exception as exc:
        if not loop.worker.closed:
            log.error("%s: %s", type(exc).__name__, exc)
            loop.worker.close(failed=True)


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
