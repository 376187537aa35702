"""Flat buffers for torch's gradients on a device, in buckets that are averaged in one call each."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from platoon_base.device_arrays import Order
from platoon_base.worker import DEFAULT_TIMEOUT_S, ErrorFeedback, WeightedAverage, Worker, sums_of

Tensor = Any

_ALIGNMENT_BYTES = 256


class Bucket(NamedTuple):
    """A part of a flat buffer that is averaged in one call; the last one ends with the header.

    ``members`` are the indices of its gradients, ``views`` the memory of each gradient.
    """

    flat: Tensor
    gradients: Tensor
    members: list[int]
    views: list[Tensor]

    def fill(self, gradients: Any, header: tuple[Tensor, Tensor] | None = None) -> None:
        """Copy gradients into the bucket, zeros for None; also ``header``: target and value."""
        there = [(view, gradients[i]) for i, view in zip(self.members, self.views) if gradients[i] is not None]
        if header is not None:
            there.append(header)  # On a device a second call would cost more than the copy.
        if there:
            torch._foreach_copy_([view for view, _ in there], [gradient.detach() for _, gradient in there])
        if len(there) < len(self.members) + (header is not None):
            for i, view in zip(self.members, self.views):
                if gradients[i] is None:
                    view.zero_()

    def scale(self, factor: Any) -> None:
        _multiply(self.gradients, factor)


class FlatAverage(WeightedAverage):
    """Flat buffers on a device, one for each dtype, in which workers average their gradients.

    ``feedback`` are the residuals of the buckets. The float32 buffer comes last and ends with the
    header: the weights of all ranks, and ``numbers`` others. In each buffer the gradients of the
    last layers come first, as in a backward pass. ``wholes`` are the buffers as one bucket each.
    The memory orders of the gradients are the same on all workers; None stands for C order.
    """

    def __init__(
        self,
        worker: Worker,
        like: Sequence[Any],
        numbers: int,
        device: Any,
        bucket_bytes: int | None,
        orders: Sequence[Order] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._worker, self._timeout_s, self.divisor = worker, timeout_s, worker.global_size
        header = self.divisor + numbers
        self.like = like
        self.views: list[Tensor] = [None] * len(like)
        self.buckets: list[Bucket] = []
        self.wholes: list[Bucket] = []
        names = [str(array.dtype).removeprefix("torch.") for array in like]
        sizes = [math.prod(array.shape) for array in like]
        others = dict.fromkeys(name for name in names if name != "float32")
        for name in [*others, "float32"]:
            indices = [i for i in reversed(range(len(like))) if names[i] == name]
            dtype = getattr(torch, name)
            unit = _ALIGNMENT_BYTES // torch.empty(0, dtype=dtype).element_size()
            starts = np.cumsum([0, *(-(-sizes[i] // unit) * unit for i in indices)]).tolist()
            end = starts[-1]
            flat = torch.zeros(end + header * (name == "float32"), dtype=dtype, device=device)
            for i, start in zip(indices, starts):
                part = flat[start : start + sizes[i]]
                self.views[i] = _shaped(part, tuple(like[i].shape), None if orders is None else orders[i])
            self.wholes.append(Bucket(flat, flat[:end], indices, [self.views[i] for i in indices]))
            self._cut(flat, indices, starts, None if bucket_bytes is None else bucket_bytes // flat.element_size())
        self.header = flat[end:]
        self._sent: dict[int, tuple[list[float], Tensor]] = {}  # The latest headers, by their lengths.
        self._weights = _array(self.header[: self.divisor])
        self._weight: Any = 0.0
        self._ahead = 0  # Elements of the header that precede the gradients.
        self.compresses = worker.advanced.compresses(_array(self.header), timeout_s)
        self.feedback: dict[int, ErrorFeedback] = defaultdict(ErrorFeedback)
        self._timing: list[Any] = []  # Events before and after the latest calls.

    def weigh(self, weight: Any, unit: float, ahead: Sequence[float] = (), *, is_sum: bool = False) -> None:
        """Set the weight of this worker's next gradients, 0 if it has none; a tensor is not 0.

        With compression it is exchanged here, together with the first numbers of the header.
        """
        self._weight, self.unit = weight, unit
        self._ahead = self.divisor + len(ahead)
        if self.compresses:
            target, numbers = self._header_of(ahead)
            target.copy_(numbers)
        self.begin(weight, is_sum, torch.is_tensor(weight) or weight > 0)

    def finish(
        self,
        gradients: Sequence[Tensor | None],
        numbers: Sequence[float],
        *,
        begun: int = 0,
        whole: bool = False,
        before: Callable[[], None] | None = None,
    ) -> None:
        """Average gradients, zeros for None, and the header, whose first ``numbers`` are given.

        ``begun`` buckets are filled and combined already, by calls that ``before`` awaits. With
        ``whole`` all gradients of a dtype are averaged in one call.
        """
        buckets = self.wholes if whole and not self.compresses else self.buckets[begun:]
        with torch.no_grad():
            header = self._header_of(numbers)
            self.fill(buckets, gradients, None if self.compresses else header)
            if before is not None:
                before()
            if buckets is self.wholes:
                for bucket in buckets:
                    self.combine(bucket.flat)
            else:
                for number in range(begun, len(self.buckets)):
                    self.combine_bucket(number)
            if self.compresses and self._ahead < len(self.header):
                self.header[self._ahead : len(header[0])] = header[1][self._ahead :]
                self.combine(self.header[self._ahead :])
            self.scale(self.rest())

    def exchange_header(self) -> None:
        self.combine(self.header[: self._ahead])

    def weights(self) -> Any:
        if torch.is_tensor(self._weights):  # This does not wait for the device.
            return self._weights.sum()
        return math.fsum(sums_of(self._weights, self.divisor).tolist()) / self.divisor

    def nonzero(self, weights: Any) -> Any:
        # To look at a tensor would wait for the device. `Bucket.scale` bounds what is divided by 0.
        return weights if torch.is_tensor(weights) else super().nonzero(weights)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Measure the device's time for the work that is queued within the ``with`` block."""
        if not self.header.is_cuda:
            yield
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._timing = [begin, end]

    def seconds(self) -> float:
        """Return the latest time of `timed`; 0 on the host, or without one."""
        if not self._timing:
            return 0.0
        begin, end = self._timing
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def _cut(self, flat: Tensor, indices: list[int], starts: list[int], full: int | None) -> None:
        """Divide a buffer into buckets, each ending with the gradient that makes it full."""
        bounds = [0]
        for k in range(1, len(indices)):
            if full is not None and starts[k] - starts[bounds[-1]] >= full:
                bounds.append(k)
        for first, last in zip(bounds, [*bounds[1:], len(indices)]):
            part = flat[starts[first] : starts[last]]
            whole = part if last < len(indices) else flat[starts[first] :]
            members = indices[first:last]
            self.buckets.append(Bucket(whole, part, members, [self.views[i] for i in members]))

    def _header_of(self, numbers: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Return the header's first elements, and this worker's weight and numbers, for `Bucket.fill`."""
        weights, rank, on_device = [0.0] * self.divisor, self._worker.global_rank, torch.is_tensor(self._weight)
        weights[rank] = 1.0 if on_device else float(self._weight)
        sent, size = [*weights, *numbers], self.divisor + len(numbers)
        if size not in self._sent or sent != self._sent[size][0]:  # Copies to a device are slower than on it.
            self._sent[size] = sent, torch.tensor(sent, dtype=torch.float32, device=self.header.device)
        if on_device:
            self._sent[size][1][rank] = self._weight
        return self.header[:size], self._sent[size][1]

    def fill(self, buckets: Sequence[Bucket], gradients: Any, header: tuple[Tensor, Tensor] | None = None) -> None:
        """Copy weighted gradients into buckets, and a header into the last one."""
        own = gradients if torch.is_tensor(self._weight) or self._weight else [None] * len(self.like)
        with torch.no_grad():
            for bucket in buckets:
                bucket.fill(own, header if bucket is buckets[-1] else None)
                bucket.scale(self.factor)

    def combine_bucket(self, number: int) -> None:
        """Average a filled bucket over the workers, or with compression sum it."""
        bucket = self.buckets[number]
        if self.idle:
            return
        if self.compresses:
            self.combine(bucket.gradients, "sum", feedback=self.feedback[number])
        else:
            self.combine(bucket.flat)

    def combine(self, flat: Tensor, op: str = "mean", **feedback: ErrorFeedback) -> None:
        array = _array(flat)
        with torch.no_grad():
            self._worker.all_reduce(array, op, dest=array, timeout_s=self._timeout_s, **feedback)

    def scale(self, factor: Any) -> None:
        for whole in self.wholes:
            whole.scale(factor)


def _array(flat: Tensor) -> Any:
    """Return a tensor of the host as an array; of a device itself."""
    return flat.numpy() if flat.device.type == "cpu" else flat


def _shaped(part: Tensor, shape: tuple[int, ...], order: Order | None) -> Tensor:
    """Return a view of flat memory with this shape, whose axes are in this order in memory."""
    if order is None:
        return part.view(shape)
    return part.view([shape[axis] for axis in order]).permute(sorted(range(len(order)), key=order.__getitem__))


def _multiply(part: Tensor, factor: Any) -> None:
    if not part.numel() or (not torch.is_tensor(factor) and factor == 1):
        return
    # A factor that overflows float16 would turn zeros, as of masked batches, into NaN.
    most = torch.finfo(part.dtype).max
    if torch.is_tensor(factor):
        most = min(most, torch.finfo(factor.dtype).max)  # The float64 maximum is no float32.
        part.mul_(factor.clamp(max=most))
    else:
        part.mul_(min(factor, most))
