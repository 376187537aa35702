"""Averages of torch's gradients that start during the backward pass, bucket by bucket, as gradients become ready."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import keras
import torch

from platoon_base.errors import ConfigurationError

__all__ = ["EarlyAverages", "early_weights", "watched_function"]

Tensor = Any

_HOOK = "register_post_accumulate_grad_hook"  # torch 2.1


class EarlyAverages:
    """Starts to average the gradients of the last layers during the backward pass of the layers before them.

    The first steps of a fit are only observed. Averages start early once `expect` has been called with the buckets.

    Parameters
    ----------
    weights : sequence of tensor
        Leaves, in the order in which the optimizer gets their gradients.
    fill : callable
        ``fill(number, gradients)`` queues the copy of gradients, a dict by index, into a bucket.
    average : callable
        ``average(number)`` averages a bucket over the workers. It is called from a separate thread, in the order of the
        buckets, so it may block without delaying the backward pass.
    device : torch.device
        The device of the weights.

    Attributes
    ----------
    good : bool
        Whether the optimizer has so far received each gradient unchanged from the backward pass, accumulated once.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        fill: Callable[[int, dict[int, Tensor]], None],
        average: Callable[[int], None],
        device: torch.device,
    ) -> None:
        self._fill, self._average = fill, average
        self._calls = _InOrder()
        self._in_flight: list[Future[None]] = []
        # A weak reference: weights may outlive the fit, even one that raised, and must not keep this and its buffers.
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
        self._found: dict[int, tuple[Tensor, int]] = {}  # gradients, and torch's version number of each
        self._missing = [len(members) for members in self._buckets]
        self._again = False
        self._begun = 0

    def close(self) -> None:
        """Remove the hooks, and start no more averages early."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.good = [], False
        self._calls.close()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Observe a training step, the ``with`` block: its gradients are those for the optimizer."""
        self._forget()
        self._active = True
        try:
            yield
        except BaseException:
            self.close()
            raise
        finally:
            self._active = False
            self._forget()  # otherwise the tensors would be kept until the next step

    def expect(self, buckets: Sequence[Sequence[int]]) -> None:
        """Start averages early from the next step on, in buckets of these gradients, except that of the last bucket."""
        self._buckets = [list(members) for members in buckets]
        self._bucket_of = {i: number for number, members in enumerate(buckets) for i in members}

    def take(self, gradients: Sequence[Tensor | None]) -> int:
        """Return how many averages of buckets have started in the backward pass of this step.

        Parameters
        ----------
        gradients : sequence of tensor or None
            The gradients that the optimizer received.

        Raises
        ------
        ConfigurationError
            If one of them has changed since its average started.
        """
        begun, self._begun = self._begun, 0
        good = self._active and len(gradients) == self._count and not self._again
        if not begun:
            self.good = self.good and good and self._are_as_found(gradients, range(len(gradients)))
        elif not (good and self._are_as_found(gradients, [i for bucket in self._buckets[:begun] for i in bucket])):
            raise ConfigurationError(
                "got gradients that changed behind the backward pass in which their average had begun, and not so in "
                "the first steps of this fit: change them in each step or in none, or in a train_step of your own"
            )
        return begun

    def wait(self) -> None:
        """Make torch's current stream wait for the averages in flight.

        Raises
        ------
        WorkerLostError, CollectiveTimeoutError
            If another worker did not make one of the calls.
        """
        in_flight, self._in_flight = self._in_flight, []
        for call in in_flight:
            call.result()
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def arrived(self, index: int, weight: Tensor) -> None:
        """Record that the gradient of a weight is ready; torch calls it, for devices from another thread."""
        if not self._active:
            return
        if index in self._found:
            self._again = True
            return
        self._found[index] = weight.grad, weight.grad._version
        if not self._missing:
            return
        self._missing[self._bucket_of[index]] -= 1
        # In the same order on all workers, whatever the order in which gradients become ready.
        while self._begun < len(self._buckets) - 1 and not self._missing[self._begun]:
            self._begin_next({i: self._found[i][0] for i in self._buckets[self._begun]})

    def _are_as_found(self, gradients: Sequence[Tensor | None], indices: Sequence[int]) -> bool:
        return all(
            i not in self._found
            if gradients[i] is None
            else i in self._found and gradients[i] is self._found[i][0] and gradients[i]._version == self._found[i][1]
            for i in indices
        )

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
    """Makes calls one after the other, in a daemon thread, so that the process can exit while one blocks."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._calls.put, None)  # ends the thread

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Queue a call; return a future that ends with it."""
        if self._thread is None:
            self._thread = threading.Thread(target=_make_calls, args=(self._calls,), name="averages", daemon=True)
            self._thread.start()
        future: Future[None] = Future()
        self._calls.put((call, future))
        return future

    def close(self) -> None:
        """End the thread after the submitted calls."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(None)


def _make_calls(calls: queue.SimpleQueue[tuple[Callable[[], None], Future[None]] | None]) -> None:
    while (taken := calls.get()) is not None:
        call, future = taken
        try:
            future.set_result(call())
        except BaseException as exc:  # raised again in the thread that waits for it
            future.set_exception(exc)
        del taken, call, future  # during the wait for the next call they would keep the buffers of an ended fit


def _on_gradient(early: weakref.ref[EarlyAverages], index: int, weight: Tensor) -> None:
    averages = early()
    if averages is not None:
        averages.arrived(index, weight)


def early_weights(model: Any) -> list[Tensor]:
    """Return the weights of a model whose averages may start in the backward pass; none if they may not.

    Keras's own train_step makes one backward pass per step and passes all of its gradients to the optimizer. A
    train_step of the user may do anything.
    """
    if getattr(model.train_step, "__func__", None) is not keras.Model.train_step:
        return []
    weights = [weight.value for weight in model.trainable_weights]
    # Weights of a torch module may have requires_grad=False, and no gradient, though Keras lists them as trainable.
    can = (weight.is_leaf and weight.requires_grad and hasattr(weight, _HOOK) for weight in weights)
    return weights if all(can) else []


def watched_function(model: Any, early: EarlyAverages) -> Callable[..., Any]:
    """Return a model's train_function in whose backward passes averages of gradients may start.

    Once a callback changes which layers are trainable, averages start after the backward pass.
    """
    function = getattr(model.train_function, "plain", model.train_function)
    tensors = [weight.value for weight in model.weights]
    trained = [tensor.requires_grad for tensor in tensors]

    @functools.wraps(function)
    def train_function(*args: Any) -> Any:
        if [tensor.requires_grad for tensor in tensors] != trained:
            early.close()
        with early.step():
            return function(*args)

    train_function.plain = function  # type: ignore[attr-defined]
    return train_function
