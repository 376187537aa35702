"""Averages of torch's gradients that start during the backward pass, bucket by bucket."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from platoon_base.errors import ConfigurationError

Tensor = Any


class EarlyAverages:
    """Starts to average gradients of the last layers during the backward pass of earlier layers.

    ``fill(number, gradients)`` queues the copy of gradients, by index, into a bucket.
    ``average(number)`` averages a bucket over the workers; a separate thread calls it in the order
    of the buckets, so it may block. Steps before `expect` are only observed: ``good`` is whether
    the optimizer has received each gradient unchanged from the backward pass.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        fill: Callable[[int, dict[int, Tensor]], None],
        average: Callable[[int], None],
        device: torch.device,
        changed: str,
    ) -> None:
        self._fill, self._average, self._changed = fill, average, changed
        self._calls = _InOrder()
        self._in_flight: list[Future[None]] = []
        # A weak reference: weights may outlive the fit and must not keep its buffers alive.
        tell = functools.partial(_on_gradient, weakref.ref(self))
        self._hooks = [
            weight.register_post_accumulate_grad_hook(functools.partial(tell, i)) for i, weight in enumerate(weights)
        ]
        self._count = len(weights)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._buckets: list[list[int]] = []
        self._bucket_of: dict[int, int] = {}
        self.good = True
        self._active = False
        self._forget()

    def _forget(self) -> None:
        # Gradients with torch's version numbers.
        self._found: dict[int, tuple[Tensor, int]] = {}
        self._missing = [len(members) for members in self._buckets]
        self._again = False
        self._begun = 0

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.good = [], False
        self._calls.close()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Observe a training step, the ``with`` block, with the gradients for the optimizer."""
        self._forget()
        self._active = True
        try:
            yield
        except BaseException:
            self.close()
            raise
        finally:
            self._active = False
            self._forget()  # This releases the tensors.

    def expect(self, buckets: Sequence[Sequence[int]]) -> None:
        """Start averages early from the next step on, in these buckets except the last."""
        self._buckets = [list(members) for members in buckets]
        self._bucket_of = {i: number for number, members in enumerate(buckets) for i in members}

    def take(self, gradients: Sequence[Tensor | None]) -> int:
        """Return how many averages have started; raise if one of their gradients has changed."""
        begun, self._begun = self._begun, 0
        good = self._active and len(gradients) == self._count and not self._again
        if not begun:
            self.good = self.good and good and self._are_as_found(gradients, range(len(gradients)))
        elif not (good and self._are_as_found(gradients, [i for bucket in self._buckets[:begun] for i in bucket])):
            raise ConfigurationError(self._changed)
        return begun

    def wait(self) -> None:
        """Make torch's current stream wait for the averages in flight; raise if one failed."""
        in_flight, self._in_flight = self._in_flight, []
        for call in in_flight:
            call.result()
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def arrived(self, index: int, weight: Tensor) -> None:
        """Record that a gradient is ready; torch calls it, for devices from another thread."""
        if not self._active:
            return
        if index in self._found:
            self._again = True
            return
        self._found[index] = weight.grad, weight.grad._version
        if not self._missing:
            return
        self._missing[self._bucket_of[index]] -= 1
        # Averages start in the same order on all workers; gradients become ready in any order.
        while self._begun < len(self._buckets) - 1 and not self._missing[self._begun]:
            self._begin_next({i: self._found[i][0] for i in self._buckets[self._begun]})

    def _are_as_found(self, gradients: Sequence[Tensor | None], indices: Sequence[int]) -> bool:
        return all(self._is_as_found(i, gradients[i]) for i in indices)

    def _is_as_found(self, i: int, gradient: Tensor | None) -> bool:
        if gradient is None or i not in self._found:
            return gradient is None and i not in self._found
        found, version = self._found[i]
        return gradient is found and bool(gradient._version == version)

    def _begin_next(self, gradients: dict[int, Tensor]) -> None:
        number, self._begun = self._begun, self._begun + 1
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with self._on_stream():
            self._fill(number, gradients)
        self._in_flight.append(self._calls.submit(functools.partial(self._average_on_stream, number)))

    def _average_on_stream(self, number: int) -> None:
        with self._on_stream():
            self._average(number)

    def _on_stream(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


class _InOrder:
    """Makes calls one after the other in a daemon thread, which does not delay the exit."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._calls.put, None)  # None ends the thread.

    def submit(self, call: Callable[[], None]) -> Future[None]:
        if self._thread is None:
            self._thread = threading.Thread(target=_make_calls, args=(self._calls,), name="averages", daemon=True)
            self._thread.start()
        future: Future[None] = Future()
        self._calls.put((call, future))
        return future

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(None)


def _make_calls(calls: queue.SimpleQueue[tuple[Callable[[], None], Future[None]] | None]) -> None:
    while (taken := calls.get()) is not None:
        call, future = taken
        try:
            future.set_result(call())
        except BaseException as exc:  # The thread that waits for the future raises it.
            future.set_exception(exc)
        # Otherwise they would keep the buffers of an ended fit alive until the next call.
        del taken, call, future


def _on_gradient(early: weakref.ref[EarlyAverages], index: int, weight: Tensor) -> None:
    averages = early()
    if averages is not None:
        averages.arrived(index, weight)
