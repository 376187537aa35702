"""Gradients of torch in flat buffers on a device, cut into the parts that are averaged in one call each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

__all__ = ["Bucket", "Flats"]

Array = np.ndarray[Any, Any]
Tensor = Any

_ALIGNMENT_BYTES = 256


class Bucket(NamedTuple):
    """A part of a flat buffer that is averaged in one call.

    Attributes
    ----------
    flat : tensor, shape (n,)
        All of it; the words are at the end of the last bucket.
    gradients : tensor, shape (m,)
        The part with the gradients.
    members : list of int
        Which these are.
    views : list of tensor
        Each of them, with its shape.
    """

    flat: Tensor
    gradients: Tensor
    members: list[int]
    views: list[Tensor]

    def fill(self, gradients: Any) -> None:
        """Copy the gradients in, by index, zeros in the place of None."""
        there = [(view, gradients[i]) for i, view in zip(self.members, self.views) if gradients[i] is not None]
        if there:
            torch._foreach_copy_([view for view, _ in there], [gradient.detach() for _, gradient in there])
        if len(there) < len(self.members):
            for i, view in zip(self.members, self.views):
                if gradients[i] is None:
                    view.zero_()

    def scale(self, factor: Any) -> None:
        """Multiply the gradients, but not the words, by a number or a tensor of one."""
        _multiply(self.gradients, factor)


class Flats:
    """Flat buffers on a device, one for each dtype of the gradients, and the words behind those of float32.

    The last layers' gradients come first in a buffer, as in a backward pass.

    Parameters
    ----------
    like : sequence of ndarray
        Zeros in the place of the gradients.
    words : int
        Number of words.
    device : torch.device
    bucket_bytes : int or None
        From how many bytes on a bucket is full. None: each buffer is one.

    Attributes
    ----------
    like
        As above.
    buckets : list of Bucket
        The parts of the buffers, in the order of their calls.
    views : list of tensor
        The parts of the buffers that are the gradients, with their shapes.
    words : tensor, shape (words,), float32
        A part of the last bucket.
    template : tensor
        This rank's words.
    """

    def __init__(self, like: Sequence[Array], header: int, device: Any, bucket_bytes: int | None) -> None:
        self.like = like
        self.views: list[Tensor] = [None] * len(like)
        self.buckets: list[Bucket] = []
        self._buffers = []  # the gradients' part of each
        others = dict.fromkeys(array.dtype.name for array in like if array.dtype.name != "float32")
        for name in [*others, "float32"]:
            indices = [i for i in reversed(range(len(like))) if like[i].dtype.name == name]
            unit = _ALIGNMENT_BYTES // np.dtype(name).itemsize
            starts = np.cumsum([0, *(-(-like[i].size // unit) * unit for i in indices)]).tolist()
            end = starts[-1]
            flat = torch.zeros(end + header * (name == "float32"), dtype=getattr(torch, name), device=device)
            for i, start in zip(indices, starts):
                self.views[i] = flat[start : start + like[i].size].view(like[i].shape)
            self._buffers.append(flat[:end])
            self._cut(flat, indices, starts, None if bucket_bytes is None else bucket_bytes // flat.itemsize)
        self.header = self.template = flat[end:]
        self._timing: list[Any] = []  # events before and behind the latest calls

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Let `seconds` tell how long the device takes for what is queued within the ``with`` block."""
        if not self.header.is_cuda:
            yield
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._timing = [begin, end]

    def seconds(self) -> float:
        """Return how long it took the last time, 0 on the host and where nothing was timed."""
        if not self._timing:
            return 0.0
        begin, end = self._timing
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def _cut(self, flat: Tensor, indices: list[int], starts: list[int], full: int | None) -> None:
        """Cut a buffer into buckets, behind gradients with which one is full; what is left is the last one's."""
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
        """Multiply all gradients, but not the words, by a number or a tensor of one."""
        for buffer in self._buffers:
            _multiply(buffer, factor)


def _multiply(part: Tensor, factor: Any) -> None:
    """Multiply by a number or a tensor of one."""
    if not part.numel() or (not torch.is_tensor(factor) and factor == 1):
        return
    # Where nothing but masked tokens were left, 0 in float16: not times infinity.
    most = torch.finfo(part.dtype).max
    part.mul_(factor.clamp(max=most) if torch.is_tensor(factor) else min(factor, most))
