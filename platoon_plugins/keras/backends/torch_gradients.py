"""Averages of torch's gradients that stay on CUDA devices, while the host is one step ahead."""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import torch

from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.torch_arrays import HostCopy
from platoon_base.torch_loops import EarlyAverages, FlatAverage
from platoon_base.worker import MIN_WEIGHT, ErrorFeedback, sums_of, unit_of
from platoon_plugins.keras.gradients import Batch, GradientAverage, GradientHeader

log = logging.getLogger(__name__)

Tensor = Any

# Size of a bucket for averages in the backward pass: that of DistributedDataParallel, or more if
# the devices average more in BUCKET_S (280 MB over NVLink). Each further call took 0.4 to 0.7 ms
# (two workers on one H100).
BUCKET_BYTES, BUCKET_S = 25 << 20, 1e-3
# Number of calls before the decision on early averages; the first call connects the devices.
_WATCHED = 2
_WITH_SPARSE = (torch.nn.Embedding, torch.nn.EmbeddingBag)


class TorchAverage(GradientAverage):
    """Averages gradients: on the host in their own memory, on a device in flat buffers."""

    # g := u mean_i(w_i g_i / u) / mean_i(w_i), where u is the largest weight of an earlier step.
    # The header follows the gradients and is read one step later, in the same step on all workers,
    # so that the host can be ahead of the device. With compression it precedes them and
    # w_i g_i / sum_i w_i is summed: residuals are of averages.

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self._device: torch.device | None = None
        self._early: EarlyAverages | None = None
        self._early_weight: Callable[[], Any] = lambda: 1.0
        # None unless averages start in the backward pass.
        self._bucket_bytes: int | None = None
        self._flats: FlatAverage | None = None
        # Residuals of buckets, by the variables of the gradients.
        self._feedback: dict[Any, dict[int, ErrorFeedback]] = defaultdict(lambda: defaultdict(ErrorFeedback))
        self._arriving = _Arriving(worker.global_size)
        self._exchanges = 0  # Averages of all buckets in this fit.

    def place(self, device: torch.device | None) -> None:
        self.watch_none()
        self._device, self.on_device = device, device is not None
        self._flats = None

    def watch_backward(self, weights: Sequence[Tensor], weight_of_batch: Callable[[], Any]) -> EarlyAverages | None:
        """Start averages in the backward pass of this fit if that is faster on all workers."""
        # Each training step must be within `EarlyAverages.step` of the result.
        self.watch_none()
        device = self._device
        # With compression the weights of all batches must be known before the first average.
        if device is None or self.worker.advanced.compresses(torch.empty(0, device=device)):
            return None
        if sum(weight.nbytes for weight in weights) > BUCKET_BYTES:
            self._early = EarlyAverages(weights, self._fill_early, self._combine_early, device, _CHANGED)
            self._early_weight = weight_of_batch
        return self._early

    def watch_none(self) -> None:
        if self._early is not None:
            self._early.close()
        self._early = None
        if self._bucket_bytes is not None:
            self._bucket_bytes = self._flats = None

    def _agree_on_buckets(self) -> None:
        """Decide with all workers, in the same call, if averages start in the backward pass."""
        if self._early is None or self._exchanges != _WATCHED:
            return
        flats = self._flats_of_like()
        answers = self.worker.gather([self._early.good, flats.seconds()], name="averages in the backward pass")
        # The minimum is that of the last worker, which did not wait.
        seconds = min(took for _, took in answers)
        size = sum(bucket.flat.nbytes for bucket in flats.buckets)
        full = max(BUCKET_BYTES, int(size * BUCKET_S / seconds) if seconds else 0)
        if not all(good for good, _ in answers) or size <= full:
            self.watch_none()
            return
        self._bucket_bytes, self._flats = full, None
        log.info("averages of gradients begin in the backward pass, in buckets of %d MB", full >> 20)

    def detach(self) -> None:
        super().detach()
        self.watch_none()

    def _forget(self) -> None:
        self._arriving.pending = False
        self._exchanges = 0

    def average(self, batch: Batch) -> list[Tensor | None]:
        """Return the averages of a batch; on a device the next call overwrites them."""
        for gradient in batch.gradients:
            if gradient is not None and gradient.layout is not torch.strided:
                raise ConfigurationError(f"got a sparse gradient: {_DENSE}")
        if self.on_device:
            return self._average_on_device(batch)
        averages = super().average(batch._replace(gradients=[_view_or_copy(each) for each in batch.gradients]))
        device = next((gradient.device for gradient in batch.gradients if gradient is not None), None)
        return [_written(gradient, array, device) for gradient, array in zip(batch.gradients, averages)]

    def _average_on_device(self, batch: Batch) -> list[Tensor | None]:
        gradients = batch.gradients
        self._begin_step()
        if len(gradients) != len(self.like):
            self._expect([_zeros_like(gradient) for gradient in gradients])
        begun = 0 if self._early is None else self._early.take(gradients)
        self._agree_on_buckets()
        flats = self._exchange_on_device(batch, begun)
        if all(batch.used):
            return list(flats.views)
        used = self._arriving.header().used
        return [view if any_uses else None for view, any_uses in zip(flats.views, used > 0)]

    def _exchange_on_device(self, batch: Batch | None, begun: int = 0) -> FlatAverage:
        """Average the header and a batch, None for zeros, except buckets that have started."""
        flats = self._flats_of_like()
        gradients, divisor, used = ([None] * len(self.like), None, 0) if batch is None else batch
        self._mine.used[:] = used
        numbers = self._mine.array[self.worker.global_size :].tolist()
        weight, is_sum = 0.0 if batch is None else _bounded(divisor), batch is not None and divisor is None
        flats.weigh(weight, self._average.unit, numbers if flats.compresses else (), is_sum=is_sum)
        flats.feedback = self._feedback[tuple(self._names)]
        self._exchanges += 1
        self._calls_made += len(flats.buckets) - begun + flats.compresses
        watched = self._early is not None and self._bucket_bytes is None
        with flats.timed() if watched else contextlib.nullcontext():
            flats.finish(gradients, numbers, begun=begun, before=self._early.wait if begun and self._early else None)
        self._catch_up()
        self._arriving.fetch(flats.header)
        return flats

    def _fill_early(self, number: int, gradients: Mapping[int, Tensor]) -> None:
        """Queue the copy of gradients into their bucket, on torch's current stream."""
        flats = self._flats_of_like()
        flats.weigh(_bounded(self._early_weight()), self._average.unit)
        flats.fill([flats.buckets[number]], gradients)
        self._calls_made += 1

    def _combine_early(self, number: int) -> None:
        self._flats_of_like().combine_bucket(number)

    def _call_without_gradients(self) -> None:
        if not self.on_device:
            super()._call_without_gradients()
            return
        self._agree_on_buckets()
        self._exchange_on_device(None)

    def _catch_up(self) -> None:
        if not self._arriving.pending:
            return
        self._arriving.pending = False
        arrived = self._arriving.header()  # Its `used` may describe other gradients.
        self._all.weights[:], self._all.flags[:] = arrived.weights, arrived.flags
        self._average.unit = unit_of(arrived.weights, self._average.unit)

    def _flats_of_like(self) -> FlatAverage:
        if self._flats is None or self._flats.like is not self.like:
            numbers = self._mine.array.size - self.worker.global_size
            self._flats = FlatAverage(self.worker, self.like, numbers, self._device, self._bucket_bytes)
            if self._early is not None and self._bucket_bytes is not None:
                self._early.expect([bucket.members for bucket in self._flats.buckets])
        return self._flats


class _Arriving:
    """The latest header, copied from the device to the host during other work."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.pending = False  # Whether the header affects no step yet.
        self._copy: HostCopy | None = None
        self._header: GradientHeader | None = None

    def fetch(self, header: Tensor) -> None:
        """Start to copy a header, into the memory of an earlier copy."""
        if self._copy is None or not self._copy.fits(header):
            self._copy = HostCopy(header)
        self._copy.start(header)
        self._header, self.pending = None, True

    def header(self) -> GradientHeader:
        """Wait for the copy, and return the header."""
        if self._header is None:
            array = self._copy.wait()  # type: ignore[union-attr]
            self._header = GradientHeader(self._size, array.size - 2 * self._size)
            self._header.array[:] = sums_of(array, self._size)
        return self._header


def _bounded(weight: Any) -> Any:
    """Return the weight of a batch, at least MIN_WEIGHT, as a number or a tensor; 1 for None."""
    if weight is None:
        return 1.0
    if torch.is_tensor(weight):
        return weight.detach().to(torch.float32).clamp(min=MIN_WEIGHT)
    return max(float(weight), MIN_WEIGHT)


def _written(gradient: Any, array: Array | None, device: Any) -> Any:
    if array is None:
        return None
    if gradient is None:
        return torch.from_numpy(array).to(device)
    if array.ctypes.data != gradient.data_ptr():
        gradient.copy_(torch.from_numpy(array))
    return gradient


def _view_or_copy(gradient: Any) -> Array | None:
    if gradient is None:
        return None
    tensor = gradient.detach()
    array: Array = tensor.contiguous().cpu().numpy()
    return array


def _zeros_like(gradient: Tensor | None) -> Array:
    if gradient is None:
        raise ConfigurationError(
            "got gradients of other weights than those of the model, and none for some: pass the weights to apply() too"
        )
    return np.zeros(tuple(gradient.shape), str(gradient.dtype).removeprefix("torch."))


_CHANGED = (
    "got gradients that changed after the backward pass in which their average had started, "
    "which did not happen in the first steps of this fit: change them in each step or in none, "
    "or in your own train_step"
)
_DENSE = "it cannot be averaged; make the layer's gradient dense, for example with sparse=False"


def require_dense_layers(model: Any) -> None:
    """Raise `ConfigurationError` if a torch module has sparse gradients (``sparse=True``)."""
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
