"""Averaged gradients of torch on CUDA devices: they stay there, and the host is a step ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import torch

from platoon_base.errors import ConfigurationError
from platoon_plugins.keras.gradients import DONE, LEAST_WEIGHT, GradientAverage, Words

__all__ = ["TorchAverage", "require_dense", "require_dense_layers"]

Array = np.ndarray[Any, Any]
Tensor = Any

LAG = 1  # a step sees what came with the gradients of the step before it: the host may be ahead of the device
_ALIGNMENT_BYTES = 256
_WITH_SPARSE = (torch.nn.Embedding, torch.nn.EmbeddingBag)


class TorchAverage(GradientAverage):
    """See `GradientAverage`. Gradients on a device are averaged there, in one flat buffer for each dtype.

    ::

        g := u mean_i(w_i g_i / u) / mean_i(w_i)        u is the largest weight of an earlier step

    which is queued on torch's current stream. Flags and weights of the ranks travel behind the gradients. They are
    copied to the host beside other work, and looked at `LAG` steps later, on all workers in the same step.
    """

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self._device: torch.device | None = None
        self._flats: _Flats | None = None
        self._sent: Array = np.empty(0, np.float32)
        self._on_way: deque[_Arriving] = deque()
        self._exchanges = 0

    def place(self, device: torch.device | None) -> None:
        """See `GradientAverage.place`."""
        self._device = device
        self._flats = None

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
        if self.on_device:
            self._require_as_many(self._exchanges)

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
        with torch.no_grad():
            flats = self._flats_of_like()
            flats.fill(gradients)
            factor = self._take_in(weight, there, flats)
            if torch.is_tensor(factor) or factor != 1:
                flats.scale(factor)
            usual, arriving = self._usual_weight, self._exchange(flats)
            mean_weight = flats.words[self._weights_at].sum()
            flats.scale(self.worker.global_size if self.sums else usual / mean_weight)
        if all(there):
            return list(flats.views)
        used = arriving.words().used
        return [view if any_uses else None for view, any_uses in zip(flats.views, used > 0)]

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
        self._mine.weights[:] = self._mine.used[:] = 0
        with torch.no_grad():
            flats = self._flats_of_like()
            flats.fill([None] * len(self._like))
            self._put_words(flats)
            self._exchange(flats)

    @property
    def _weights_at(self) -> slice:
        size = self.worker.global_size
        return slice(size, 2 * size)

    def _take_in(self, weight: Any, there: list[bool], flats: _Flats) -> Any:
        """Put this rank's words behind the gradients, and return by what these are to be multiplied."""
        rank, usual = self.worker.global_rank, self._usual_weight
        self._mine.used[:] = there
        on_device = torch.is_tensor(weight) and not self.sums
        number = 1.0 if self.sums or on_device else max(float(weight), LEAST_WEIGHT)
        self._mine.weights[rank] = number
        self._put_words(flats)
        if not on_device:
            return number / usual
        weight = weight.detach().to(flats.words.dtype).clamp(min=LEAST_WEIGHT)
        flats.words[self._weights_at][rank] = weight
        return weight / usual

    def _put_words(self, flats: _Flats) -> None:
        if not np.array_equal(self._sent, self._mine.array):
            self._sent = self._mine.array.copy()
            flats.template = torch.from_numpy(self._sent).to(flats.words.device)
        flats.words.copy_(flats.template)

    def _exchange(self, flats: _Flats) -> _Arriving:
        """Average the buffers, and let what came with the gradients of an earlier step be seen."""
        while len(self._on_way) >= LAG:
            self._take_oldest()
        self._exchanges += 1
        for flat in flats.buffers:
            self.worker.all_reduce(flat, "mean", dest=flat)
        arriving = _Arriving(flats.words, self.worker.global_size)
        self._on_way.append(arriving)
        return arriving

    def _take_oldest(self) -> None:
        words = self._on_way.popleft().words()
        ranks = slice(0, 2 * self.worker.global_size)  # which gradients are used may be about others by now
        self._all.array[ranks] = words.array[ranks]
        self._note_usual_weight()

    def _flats_of_like(self) -> _Flats:
        if self._flats is None or self._flats.like is not self._like:
            self._flats = _Flats(self._like, self._mine.array.size, self._device)
            self._sent = np.empty(0, np.float32)
        return self._flats


class _Flats:
    """Flat buffers on a device, one for each dtype of the gradients, and the words behind those of float32.

    Parameters
    ----------
    like : sequence of ndarray
        Zeros in the place of the gradients.
    words : int
        Number of words.
    device : torch.device

    Attributes
    ----------
    like
        As above.
    buffers : list of tensor, each of shape (n,)
    views : list of tensor
        The parts of the buffers that are the gradients, with their shapes.
    words : tensor, shape (words,), float32
        A part of one of the buffers.
    template : tensor
        This rank's words.
    """

    def __init__(self, like: Sequence[Array], words: int, device: Any) -> None:
        self.like = like
        self.views: list[Tensor] = [None] * len(like)
        self._members: list[tuple[Tensor, list[int]]] = []  # the gradients' part of a buffer, and which they are
        self.buffers = []
        names = list(dict.fromkeys([*(array.dtype.name for array in like), "float32"]))
        for name in names:
            indices = [i for i, array in enumerate(like) if array.dtype.name == name]
            unit = _ALIGNMENT_BYTES // np.dtype(name).itemsize
            starts = np.cumsum([0, *(-(-like[i].size // unit) * unit for i in indices)]).tolist()
            end = starts[-1]
            flat = torch.zeros(end + words * (name == "float32"), dtype=getattr(torch, name), device=device)
            for i, start in zip(indices, starts):
                self.views[i] = flat[start : start + like[i].size].view(like[i].shape)
            if name == "float32":
                self.words = self.template = flat[end:]
            self.buffers.append(flat)
            self._members.append((flat[:end], indices))

    def fill(self, gradients: Sequence[Tensor | None]) -> None:
        """Copy the gradients in, zeros in the place of None."""
        for _, indices in self._members:
            there = [i for i in indices if gradients[i] is not None]
            if there:
                torch._foreach_copy_([self.views[i] for i in there], [gradients[i].detach() for i in there])
            for i in indices:
                if gradients[i] is None:
                    self.views[i].zero_()

    def scale(self, factor: Any) -> None:
        """Multiply the gradients, but not the words, by a number or a tensor of one."""
        for part, indices in self._members:
            if indices:
                # Where nothing but masked tokens were left, 0 in float16: not times infinity.
                most = torch.finfo(part.dtype).max
                part.mul_(factor.clamp(max=most) if torch.is_tensor(factor) else min(factor, most))


class _Arriving:
    """The words of one call on their way from the device to the host, beside other work."""

    def __init__(self, words: Tensor, size: int) -> None:
        self._size = size
        on_cuda = words.device.type == "cuda"
        self._host = torch.empty(words.shape, dtype=words.dtype, pin_memory=on_cuda)
        self._host.copy_(words, non_blocking=on_cuda)
        self._event = torch.cuda.Event() if on_cuda else None
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(words.device))
        self._words: Words | None = None

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
