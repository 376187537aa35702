"""Flat buffers for the gradients of torch on a device, divided into buckets that are averaged in one call each."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from platoon_base.device_arrays import Order

__all__ = ["Bucket", "Flats"]

Tensor = Any

_ALIGNMENT_BYTES = 256


class Bucket(NamedTuple):
    """A part of a flat buffer that is averaged in one call.

    Attributes
    ----------
    flat : tensor, shape (n,)
        The whole part; in the last bucket it ends with the header.
    gradients : tensor, shape (m,)
        The part with the gradients.
    members : list of int
        The indices of these gradients.
    views : list of tensor
        The memory of each gradient, with its shape.
    """

    flat: Tensor
    gradients: Tensor
    members: list[int]
    views: list[Tensor]

    def fill(self, gradients: Any, header: tuple[Tensor, Tensor] | None = None) -> None:
        """Copy gradients, found by their indices, into the bucket; zeros for None.

        With ``header``, its memory and what it shall be, that is copied too: in the same call, which on a device takes
        the host longer than the copies.
        """
        there = [(view, gradients[i]) for i, view in zip(self.members, self.views) if gradients[i] is not None]
        if header is not None:
            there.append(header)
        if there:
            torch._foreach_copy_([view for view, _ in there], [gradient.detach() for _, gradient in there])
        if len(there) < len(self.members) + (header is not None):
            for i, view in zip(self.members, self.views):
                if gradients[i] is None:
                    view.zero_()

    def scale(self, factor: Any) -> None:
        """Multiply the gradients, but not the header, by a number or a tensor of one element."""
        _multiply(self.gradients, factor)


class Flats:
    """Flat buffers on a device, one for each dtype of the gradients, with the header after those of float32.

    The gradients of the last layers come first in a buffer, as in a backward pass.

    Parameters
    ----------
    like : sequence of ndarray or tensor
        Arrays with the shapes and dtypes of the gradients.
    header : int
        Number of elements of the header, see `GradientHeader`.
    device : torch.device
    bucket_bytes : int or None
        The size at which a bucket is full. None: each buffer is one bucket.
    orders : sequence of tuple of int, optional
        The order in memory of each gradient, the same on all workers; C order by default.

    Attributes
    ----------
    like
        See the parameter.
    buckets : list of Bucket
        The parts of the buffers, in the order of their calls.
    wholes : list of Bucket
        Each buffer as one bucket.
    views : list of tensor
        The memory of each gradient in the buffers, with its shape.
    header : tensor, shape (header,), float32
        The end of the last bucket.
    template : tensor
        This rank's header.
    """

    def __init__(
        self,
        like: Sequence[Any],
        header: int,
        device: Any,
        bucket_bytes: int | None,
        orders: Sequence[Order] | None = None,
    ) -> None:
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
        self.header = self.template = flat[end:]
        self._timing: list[Any] = []  # events before and after the latest calls

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Measure, for `seconds`, the time of the device for the work that is queued within the ``with`` block."""
        if not self.header.is_cuda:
            yield
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._timing = [begin, end]

    def seconds(self) -> float:
        """Return the latest time that `timed` has measured; 0 on the host, or if it has measured none."""
        if not self._timing:
            return 0.0
        begin, end = self._timing
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def _cut(self, flat: Tensor, indices: list[int], starts: list[int], full: int | None) -> None:
        """Divide a buffer into buckets, each ending with the gradient that makes it full; the last has the rest."""
        bounds = [0]
        for k in range(1, len(indices)):
            if full is not None and starts[k] - starts[bounds[-1]] >= full:
                bounds.append(k)
        for first, last in zip(bounds, [*bounds[1:], len(indices)]):
            part = flat[starts[first] : starts[last]]
            whole = part if last < len(indices) else flat[starts[first] :]
            members = indices[first:last]
            self.buckets.append(Bucket(whole, part, members, [self.views[i] for i in members]))

    def scale(self, factor: Any) -> None:
        """Multiply all gradients, but not the header, by a number or a tensor of one element."""
        for whole in self.wholes:
            whole.scale(factor)

    def divide(self, divisor: Tensor) -> None:
        """Divide all gradients, but not the header, by a float32 tensor of one element; by 0 zeros remain zeros."""
        divisor = divisor.clamp(min=torch.finfo(torch.float32).tiny)
        for whole in self.wholes:
            if whole.gradients.dtype in (torch.float32, torch.float64):
                whole.gradients.div_(divisor)
            else:  # where the divisor could be too small for the dtype
                whole.scale(divisor.reciprocal())


def _shaped(part: Tensor, shape: tuple[int, ...], order: Order | None) -> Tensor:
    """Return a view of flat memory with this shape, whose axes are in this order in memory."""
    if order is None:
        return part.view(shape)
    return part.view([shape[axis] for axis in order]).permute(sorted(range(len(order)), key=order.__getitem__))


def _multiply(part: Tensor, factor: Any) -> None:
    """Multiply in place by a number or a tensor of one element."""
    if not part.numel() or (not torch.is_tensor(factor) and factor == 1):
        return
    # A factor that overflows float16 would turn zeros, the gradients if everything is masked, into NaN.
    most = torch.finfo(part.dtype).max
    if torch.is_tensor(factor):
        most = min(most, torch.finfo(factor.dtype).max)  # that of float64 is no float32
        part.mul_(factor.clamp(max=most))
    else:
        part.mul_(min(factor, most))
