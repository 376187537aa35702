"""Averages of JAX's gradients; those on CUDA devices stay there, and the host is a batch ahead."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from platoon_base.errors import CollectiveTimeoutError, PlatoonError
from platoon_base.worker import DEFAULT_TIMEOUT_S, MIN_WEIGHT, ErrorFeedback
from platoon_plugins.keras.gradients import Batch, CompiledAverage, GradientHeader

try:
    from platoon_base import jax_arrays
except ImportError:  # JAX before 0.5, or no C extension.
    jax_arrays = None  # type: ignore[assignment]

Array = np.ndarray[Any, Any]

# Maximum of unread headers in loops over train_on_batch.
_KEPT = 1000


class JaxAverage(CompiledAverage):
    """Averages gradients of JAX; on a device they are summed between the step's kernels."""

    # The header follows the gradients, or with compression precedes them. The host reads a batch's
    # header after it has started the next program, so all workers act on it after the same batch.

    def __init__(self, worker: Any, settle: Callable[[], None]) -> None:
        super().__init__(worker)
        self._settle_programs = settle
        self._sums: Any = None  # A DeviceAllReduce.
        # Programs of calls without gradients, by kinds of gradients.
        self._without: dict[Any, Callable[[], Any]] = {}
        self._queued = _Queued()
        # Handlers by kinds of calls, as compiled programs only have their numbers.
        self._handlers: dict[Any, Callable[..., Any]] = {}
        self._forget()

    def _forget(self) -> None:
        if self.on_device:
            self._settle_programs()  # Its failures belong to the fit that is over.
        super()._forget()
        self._queued.forget()
        self._per_batch = 0
        self._due = self._visible = self._queued.count

    def place(self, sums: Any) -> None:
        """Prepare for gradients on a device, summed by a `DeviceAllReduce`; None for the host."""
        self._sums, self.on_device = sums, sums is not None

    @property
    def _calls_made(self) -> int:  # type: ignore[override]
        return self._queued.count

    def average_in_program(self, batch: Batch) -> Sequence[Any]:
        """Return the averages: on a device, in the memory of a CPU program, or by copies."""
        is_sum = batch.weight is None
        weight = 1.0 if is_sum else batch.weight
        if self.on_device:
            weight = jnp.maximum(jnp.asarray(weight, np.float32), MIN_WEIGHT)
            return self._sums_over_workers(batch._replace(weight=weight), counts=True, is_sum=is_sum)
        if jax_arrays is not None and jax.default_backend() == "cpu":
            fill = self._handler(is_sum, self._fill_in_place, is_sum)
            return jax_arrays.call_in_place(fill, batch.gradients, weight)
        shapes = [jax.ShapeDtypeStruct(gradient.shape, gradient.dtype) for gradient in batch.gradients]
        call = self._handler(("copies", is_sum), self._fill_copies, is_sum)
        averages: Sequence[Any] = io_callback(call, shapes, list(batch.gradients), weight, ordered=True)
        return averages

    def _handler(self, kind: Any, call: Callable[..., Any], *first: Any) -> Callable[..., Any]:
        """Return a call with its first arguments, always the same object for a kind of call."""
        if kind not in self._handlers:
            self._handlers[kind] = functools.partial(call, *first)
        return self._handlers[kind]

    def _fill_in_place(self, is_sum: bool, outs: Sequence[Array], ins: Sequence[Array], scalar: float) -> None:
        self.fill(Batch(ins, None if is_sum else scalar, [True] * len(ins)), outs)

    def _fill_copies(self, is_sum: bool, gradients: Sequence[Any], weight: Any) -> list[Array]:
        ins = [np.asarray(gradient, order="C") for gradient in gradients]
        outs = [np.empty_like(array) for array in ins]
        self._fill_in_place(is_sum, outs, ins, weight)
        return outs

    def _queue(
        self, like: list[Array], names: Sequence[Any], counts: bool, blocks: Sequence[jax_arrays.Block], stream: int
    ) -> None:
        """Queue the sums of flat buffers, the last of which ends with the header; XLA calls it."""
        # `like` and `names` are those of the trace: `expect` may have been called since.
        self.require_sound()
        rank = self.worker.global_rank
        count = 2 * self.worker.global_size + len(like)
        header = blocks[-1].address + 4 * (blocks[-1].size - count)
        try:
            self.require_attached()
            if counts:
                self._begin_step()
            # The header stays, as another thread may be writing a vote to it.
            self.like, self._names = like, names
            flag = float(self._mine.flags[rank])
            if flag:
                self._sums.put(header + 4 * (self.worker.global_size + len(like) + rank), flag, stream)
            for block in blocks:
                self._sums.add_up(block.address, block.size, block.dtype.name, stream)
            self._queued.add(self._sums.fetch(header, count, stream))
            if not self._per_batch:
                self._queued.take(self._queued.count - _KEPT, self.require_sound)
        except PlatoonError as exc:
            self._failure = exc
            self._queued.fail()

    def _queue_compressed(
        self, feedback: Sequence[ErrorFeedback], blocks: Sequence[jax_arrays.Block], stream: int
    ) -> None:
        """Queue the sums of flat buffers after those of their header; XLA calls it."""
        self.require_sound()
        try:
            for block, kept in zip(blocks, feedback):
                if block.size:
                    self._sums.add_up(block.address, block.size, block.dtype.name, stream, kept)
        except PlatoonError as exc:
            self._failure = exc
            self._queued.fail()

    def count(self, steps: int) -> None:
        if not self.on_device:
            return
        if not self._per_batch:
            self._settle_programs()
            self._per_batch = (self._queued.count - self._due) // steps
        self._due += steps * self._per_batch

    def program_started(self) -> None:
        """Record the start of a program: earlier headers can be read while it runs."""
        self._visible = self._due

    def _latest(self) -> Array:
        if self.on_device:
            self._take(self._visible)
        return super()._latest()

    def _catch_up(self) -> None:
        if self.on_device:
            self._settle_programs()
            self._due = self._visible = self._queued.count
            self._take(self._due)

    def require_sound(self) -> None:
        super().require_sound()
        if self.on_device:
            self._sums.require_sound()

    def _call_without_gradients(self) -> None:
        if not self.on_device:
            super()._call_without_gradients()
            return
        if self._sums.compresses:  # The header is read before the gradients are summed.
            self._sums_without_gradients(self.like)
        else:
            kind = (*self._names, *((array.shape, array.dtype.str) for array in self.like))
            if kind not in self._without:
                self._without[kind] = jax.jit(functools.partial(self._sums_without_gradients, self.like))
            try:
                jax.block_until_ready(self._without[kind]())  # Then the call is counted, see `_catch_up`.
            except RuntimeError:  # JAX's own; its cause is more useful.
                self.require_sound()
                raise
        self.require_sound()

    def _sums_without_gradients(self, like: Sequence[Array]) -> Any:
        zeros = [jnp.zeros(array.shape, array.dtype) for array in like]
        batch = Batch(zeros, jnp.zeros((), np.float32), [False] * len(zeros))
        return self._sums_over_workers(batch, counts=False, is_sum=False)[0]

    def _sums_over_workers(self, batch: Batch, counts: bool, is_sum: bool) -> list[Any]:
        """Return the averages of weighted gradients, or sums; ``counts`` if they are of a step."""
        gradients, size = batch.gradients, self.worker.global_size
        kind = (*self._names, *((gradient.shape, gradient.dtype) for gradient in gradients))
        like = [np.zeros(gradient.shape, gradient.dtype) for gradient in gradients]
        call = self._handler((counts, kind), self._queue, like, self._names, counts)
        compressed = None
        if self._sums.compresses:
            feedback = [ErrorFeedback(), ErrorFeedback()]
            compressed = self._handler(("compressed", kind), self._queue_compressed, feedback)
        numbers = [np.asarray(batch.used), np.zeros(size)]
        place = self.worker.global_rank, size
        return jax_arrays.sum_over_workers(
            gradients, batch.weight, place, call, compressed, numbers=numbers, is_sum=is_sum, idle=not counts
        )

    def _take(self, calls: int) -> None:
        """Read the header of call number ``calls``, and drop those of earlier calls."""
        taken = self._queued.take(calls, self.require_sound)
        if taken is None:
            return
        header = GradientHeader(self.worker.global_size, taken.size - 2 * self.worker.global_size)
        header.array[:] = taken
        self._all = header
        if len(header.used) == len(self.like):
            header.require_used_alike(self.like)


class _Queued:
    """Queue of headers on their way to the host; XLA may make calls in its own thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._on_way: deque[Any] = deque()
        self.count = 0

    def forget(self) -> None:
        """Drop the headers of all calls so far."""
        with self._changed:
            while self._on_way:
                self._on_way.popleft().drop()

    def add(self, fetched: Any) -> None:
        with self._changed:
            self._on_way.append(fetched)
            self.count += 1
            self._changed.notify_all()

    def fail(self) -> None:
        """Wake the thread in `take`, which then raises the error of a call."""
        with self._changed:
            self._changed.notify_all()

    def take(self, calls: int, require_sound: Callable[[], None]) -> Array | None:
        """Wait for ``calls`` calls in total; return the last header, None if already taken."""
        found: list[Any] = []
        deadline = time.monotonic() + DEFAULT_TIMEOUT_S
        with self._changed:
            while self.count < calls:
                require_sound()
                if time.monotonic() > deadline:
                    raise CollectiveTimeoutError(
                        f"waited {DEFAULT_TIMEOUT_S:g} s for a compiled step to average its "
                        f"gradients: {calls} averages were expected, {self.count} were started; "
                        "let a train_step average in all steps, or in none"
                    )
                self._changed.wait(1.0)
            while len(self._on_way) > self.count - calls:
                found.append(self._on_way.popleft())
        # Read all, as an unread header keeps its page of memory.
        values = [fetched.values() for fetched in found]
        return values[-1] if values else None
