"""Averaged gradients of torch on CUDA devices: they stay there, and the host is a step ahead."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import torch

from platoon_base.errors import ConfigurationError
from platoon_plugins.keras.backends.torch_backward import EarlyAverages
from platoon_plugins.keras.backends.torch_flats import Bucket, Flats
from platoon_plugins.keras.gradients import DONE, LEAST_WEIGHT, GradientAverage, Words

__all__ = ["TorchAverage", "require_dense", "require_dense_layers"]

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
Tensor = Any

LAG = 1  # a step sees what came with the gradients of the step before it: the host may be ahead of the device
# Of gradients in one call, where calls begin in the backward pass: DistributedDataParallel's, or what the devices take
# this long for, 280 MB where NVLink connects them. A call more took 0.4 to 0.7 ms (H100, two workers on it).
BUCKET_BYTES, BUCKET_S = 25 << 20, 1e-3
_WATCHED = 2  # calls of a fit that show whether others may begin early; the first one connects the devices
_WITH_SPARSE = (torch.nn.Embedding, torch.nn.EmbeddingBag)


class TorchAverage(GradientAverage):
    """See `GradientAverage`. Gradients on a device are averaged there, in one flat buffer for each dtype.

    ::

        g := u mean_i(w_i g_i / u) / mean_i(w_i)        u is the largest weight of an earlier step

    which is queued on torch's current stream. From the fourth call of a fit on, parts of the buffers may begin during
    the backward pass, on another stream: see `watch_backward`. Flags and weights of the ranks travel behind the
    gradients. They are copied to the host beside other work, and looked at `LAG` steps later, on all workers in the
    same step.
    """

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self._device: torch.device | None = None
        self._early: EarlyAverages | None = None
        self._bucket_bytes: int | None = None  # where averages begin in the backward pass
        self._flats: Flats | None = None
        self._sent: Array = np.empty(0, np.float32)
        self._on_way: deque[_Arriving] = deque()
        self._idle: list[_Arriving] = []
        self._exchanges = 0  # of this fit
        self._calls_made = 0

    def place(self, device: torch.device | None) -> None:
        """See `GradientAverage.place`."""
        self.watch_backward([])
        self._device = device
        self._flats = None

    def watch_backward(self, weights: Sequence[Tensor]) -> bool:
        """Let averages begin in the backward pass if that is worth it, on all workers or none, until the end of a fit.

        Parameters
        ----------
        weights : sequence of tensor
            Whose gradients come in this order; on the device of `place`. Without any, averages begin behind it.

        Returns
        -------
        bool
            Whether they may begin: `watched_step` has to tell of each training step then.
        """
        if self._early is not None:
            self._early.close()
        self._early = None
        if self._bucket_bytes is not None:
            self._bucket_bytes = self._flats = None
        if self._device is not None and sum(weight.nbytes for weight in weights) > BUCKET_BYTES:
            self._early = EarlyAverages(weights, self._fill_early, self._average_early, self._device)
        return self._early is not None

    def begin_none_early(self) -> None:
        """Let averages begin behind the backward pass from now on; calls stay those of workers that go on as before."""
        if self._early is not None:
            self._early.close()

    def watched_step(self) -> contextlib.AbstractContextManager[None]:
        """Make a context for a training step: one backward pass, and what the optimizer does with it."""
        return contextlib.nullcontext() if self._early is None else self._early.step()

    def _agree_on_buckets(self) -> None:
        """Decide with all workers, in the same call of a fit, whether averages begin in the backward pass."""
        if self._early is None or self._exchanges != _WATCHED:
            return
        flats = self._flats_of_like()
        answers = self.worker.gather([self._early.good, flats.seconds()], name="averages in the backward pass")
        seconds = min(took for _, took in answers)  # of the worker that came last, and waited for nobody
        size = sum(bucket.flat.nbytes for bucket in flats.buckets)
        full = max(BUCKET_BYTES, int(size * BUCKET_S / seconds) if seconds else 0)
        if not all(good for good, _ in answers) or size <= full:
            self.watch_backward([])
            return
        self._bucket_bytes, self._flats = full, None
        log.info("averages of gradients begin in the backward pass, in buckets of %d MB", full >> 20)

    def detach(self) -> None:
        """See `GradientAverage.detach`."""
        super().detach()
        self.watch_backward([])

    def attach(self, policy: str, like: Sequence[Array]) -> None:
        """See `GradientAverage.attach`.

        Raises
        ------
        ConfigurationError
            On all workers, if an earlier fit was interrupted after other numbers of calls, so that gradients of it wait
            on some devices.
        """
        self._on_way.clear()
        super().attach(policy, like)
        self._exchanges = 0
        if self.on_device:
            self._require_as_many(self._calls_made)

    @property
    def on_device(self) -> bool:
        """Whether gradients stay on their device."""
        return self._device is not None

    def averages(self, gradients: Sequence[Tensor | None], weight: Any) -> list[Tensor | None]:
        """Return the averages, as parts of buffers that the next call overwrites.

        In the place of None, a weight that is not used in this step, is the average with zeros; None if no worker uses
        it.

        Parameters
        ----------
        gradients : sequence of tensor or None
            On the device of `place`.
        weight : float or tensor
            What this worker's loss was divided by.

        Raises
        ------
        WorkerLostError, CollectiveTimeoutError
            If another worker does not make the call.
        """
        self._begin_step()
        if len(gradients) != len(self._like):
            self._expect([_zeros_like(gradient) for gradient in gradients])
        there = [gradient is not None for gradient in gradients]
        begun = 0 if self._early is None else self._early.take(gradients)
        self._agree_on_buckets()
        with torch.no_grad():
            flats = self._flats_of_like()
            weight, usual = self._bounded(weight), self._usual_weight
            self._put_words(flats, weight, there)
            for bucket in flats.buckets[begun:]:
                bucket.fill(gradients)
                bucket.scale(weight / usual)
            if begun and self._early is not None:
                self._early.wait()
            arriving = self._exchange(flats, begun)
            mean_weight = flats.words[self._weights_at].sum()
            flats.scale(self.worker.global_size if self.sums else usual / mean_weight)
        if all(there):
            return list(flats.views)
        used = arriving.words().used
        return [view if any_uses else None for view, any_uses in zip(flats.views, used > 0)]

    def _fill_early(self, number: int, gradients: Mapping[int, Tensor]) -> None:
        """Queue the copy of gradients into their bucket, on torch's current stream."""
        if not number:
            self._exchanges += 1
        with torch.no_grad():
            bucket = self._flats_of_like().buckets[number]
            bucket.fill(gradients)
            weight = self._bounded(1.0 if self.weight is None else self.weight)
            bucket.scale(weight / self._usual_weight)
        self._calls_made += 1

    def _average_early(self, number: int) -> None:
        """Average a bucket that is filled; on a thread beside the backward pass."""
        self._average_bucket(self._flats_of_like().buckets[number])

    def _average(self, bucket: Bucket) -> None:
        self._calls_made += 1
        self._average_bucket(bucket)

    def _average_bucket(self, bucket: Bucket) -> None:
        with torch.no_grad():
            self.worker.all_reduce(bucket.flat, "mean", dest=bucket.flat)

    def settle(self) -> None:
        """See `GradientAverage.settle`."""
        while self._on_way:
            self._take_oldest()
        self._all.flags[:] = 0  # those of an epoch that is over are not to be seen in the first step of the next

    def is_last_call(self) -> bool:
        """See `GradientAverage.is_last_call`: who asks that has nothing else to do, and waits for the device."""
        if not self.on_device:
            return super().is_last_call()
        self._call_without_gradients()
        return bool((self._on_way[-1].words().flags == DONE).all())

    def _call_without_gradients(self) -> None:
        if not self.on_device:
            super()._call_without_gradients()
            return
        self._agree_on_buckets()
        with torch.no_grad():
            flats = self._flats_of_like()
            for bucket in flats.buckets:
                bucket.fill([None] * len(self._like))
            self._put_words(flats, 0.0, 0)
            self._exchange(flats)

    @property
    def _weights_at(self) -> slice:
        size = self.worker.global_size
        return slice(size, 2 * size)

    def _bounded(self, weight: Any) -> Any:
        """Return a weight as it counts: a number, or a float32 tensor on the device."""
        if self.sums:
            return 1.0
        if torch.is_tensor(weight):
            return weight.detach().to(torch.float32).clamp(min=LEAST_WEIGHT)
        return max(float(weight), LEAST_WEIGHT)

    def _put_words(self, flats: Flats, weight: Any, there: Any) -> None:
        """Put this rank's words behind the gradients."""
        rank, on_device = self.worker.global_rank, torch.is_tensor(weight)
        self._mine.used[:] = there
        self._mine.weights[rank] = 1.0 if on_device else weight
        if not np.array_equal(self._sent, self._mine.array):
            self._sent = self._mine.array.copy()
            flats.template = torch.from_numpy(self._sent).to(flats.words.device)
        flats.words.copy_(flats.template)
        if on_device:
            flats.words[self._weights_at][rank] = weight

    def _exchange(self, flats: Flats, begun: int = 0) -> _Arriving:
        """Average the buckets that have not begun, and let what came with the gradients of an earlier step be seen."""
        while len(self._on_way) >= LAG:
            self._take_oldest()
        if not begun:
            self._exchanges += 1
        watched = self._early is not None and self._bucket_bytes is None
        with flats.timed() if watched else contextlib.nullcontext():
            for bucket in flats.buckets[begun:]:
                self._average(bucket)
        arriving = self._idle.pop() if self._idle else _Arriving(self.worker.global_size)
        arriving.fetch(flats.words)
        self._on_way.append(arriving)
        return arriving

    def _take_oldest(self) -> None:
        arriving = self._on_way.popleft()
        words = arriving.words()
        self._idle.append(arriving)
        ranks = slice(0, 2 * self.worker.global_size)  # which gradients are used may be about others by now
        self._all.array[ranks] = words.array[ranks]
        self._note_usual_weight()

    def _flats_of_like(self) -> Flats:
        if self._flats is None or self._flats.like is not self._like:
            self._flats = Flats(self._like, self._mine.array.size, self._device, self._bucket_bytes)
            self._sent = np.empty(0, np.float32)
            if self._early is not None and self._bucket_bytes is not None:
                self._early.expect([bucket.members for bucket in self._flats.buckets])
        return self._flats


class _Arriving:
    """The words of one call on their way from the device to the host, beside other work.

    Parameters
    ----------
    size : int
        Number of ranks.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._host = torch.empty(0)
        self._event: Any = None
        self._words: Words | None = None

    def fetch(self, words: Tensor) -> None:
        """Begin to copy them; memory and event of an earlier copy are used again."""
        on_cuda = words.device.type == "cuda"
        if self._host.shape != words.shape:
            self._host = torch.empty(words.shape, dtype=words.dtype, pin_memory=on_cuda)
        self._host.copy_(words, non_blocking=on_cuda)
        if on_cuda:
            self._event = self._event or torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(words.device))
        self._words = None

    def words(self) -> Words:
        """Wait until they are there."""
        if self._words is None:
            if self._event is not None:
                self._event.synchronize()
            self._words = Words(self._size, self._host.numel() - 2 * self._size)
            self._words.array[:] = self._host.numpy()
            self._words.round(self._size)
        return self._words


def _zeros_like(gradient: Tensor | None) -> Array:
    if gradient is None:
        raise ConfigurationError(
            "got gradients of other weights than those of the model, and none for some: pass apply() the weights too"
        )
    return np.zeros(tuple(gradient.shape), str(gradient.dtype).removeprefix("torch."))


_DENSE = "it cannot be averaged; make the layer's gradient dense, such as by sparse=False"


def require_dense(gradient: Tensor) -> None:
    """Raise `ConfigurationError` if a gradient is sparse."""
    if gradient.layout is not torch.strided:
        raise ConfigurationError(f"got a sparse gradient: {_DENSE}")


def require_dense_layers(model: Any) -> None:
    """Raise `ConfigurationError` if a torch module of the model says that the gradient of its weight is sparse."""
    trained = [weight.value for weight in model.trainable_variables]
    for layer in model._flatten_layers():
        if not isinstance(layer, keras.layers.TorchModuleWrapper):
            continue
        for name, module in layer.module.named_modules():
            if isinstance(module, _WITH_SPARSE) and module.sparse and any(module.weight is each for each in trained):
                title = f"{type(module).__name__} {name}".rstrip()
                raise ConfigurationError(
                    f"got a DistributedOptimizer, and a sparse gradient of {title} in the layer {layer.name}: {_DENSE}"
                )
