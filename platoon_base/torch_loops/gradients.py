"""Averaged gradients in a torch loop: N workers train like one process with the batches of all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from platoon_base.device_arrays import Order, order_of
from platoon_base.devices import warn_if_not_on_device
from platoon_base.dtypes import DEVICE_FLOATS
from platoon_base.errors import ConfigurationError
from platoon_base.fingerprint import checksum
from platoon_base.torch_loops.backward import EarlyAverages
from platoon_base.torch_loops.flats import FlatAverage
from platoon_base.torch_loops.running_stats import RunningStats, warn_of_sync_batch_norm
from platoon_base.torch_loops.state import have_trained, named_tensors, values_of
from platoon_base.worker import DEFAULT_TIMEOUT_S, Worker, require_weight, start_training, unit_of

Tensor = Any

BUCKET_BYTES = 25 << 20  # DistributedDataParallel uses the same size.


class GradientAverage:
    """Averages the gradients of a model over all workers, between backward pass and optimizer step.

    ::

        g := sum_i w_i g_i / sum_i w_i

    where w_i is the weight of worker i's batch, such as its number of rows. Then g is the gradient
    of the mean loss over the rows of all workers, whatever the sizes of their batches. It replaces
    the ``grad`` of each parameter.

    The constructor is a collective call: all workers get the first worker's parameters and buffers.
    Steps do not average buffers, see `average_buffers`. With a single worker all calls do nothing.

    Parameters
    ----------
    worker : Worker
    model : torch.nn.Module, torch.optim.Optimizer or iterable of tensors
        All parameters that require a gradient are averaged. They must be the same on every worker,
        and on one device. For an optimizer, or tensors such as ``model.parameters()``, no buffers
        are copied, and parameters that a model gets later are not detected.
    bucket_bytes : int
        For `overlapping`: the size at which a group of gradients is averaged, during the rest of
        the backward pass.
    intent : Intent, optional
        What to mark as used, of `prepare`; by default one that warns if it is never called.

    Raises
    ------
    ConfigurationError
        If no parameter requires a gradient, one is of a dtype that cannot be averaged, or this
        worker joined late.
    LayoutMismatchError
        On every worker, before anything is changed, if their models differ.

    Examples
    --------
    >>> average = GradientAverage(worker, model)                                    # doctest: +SKIP
    >>> for x, y in loader:                                                         # doctest: +SKIP
    ...     optimizer.zero_grad()
    ...     loss_of(model(x), y).backward()
    ...     average(len(x))
    ...     optimizer.step()
    """

    def __init__(
        self,
        worker: Worker,
        model: Any,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        intent: Any = None,
    ) -> None:
        self.worker = worker
        parameters, buffers = _tensors_of(model)
        self._named = [(name, tensor) for name, tensor in parameters if tensor.requires_grad]
        self._parameters = self.parameters = [tensor for _, tensor in self._named]
        self._model = model if isinstance(model, (torch.nn.Module, torch.optim.Optimizer)) else parameters
        self._known = {id(tensor): tensor for tensor in _leaves(self._model) if tensor.requires_grad}
        _require_averageable(self._named)
        warn_if_not_on_device(worker.device, self._parameters)
        self._bucket_bytes, self._timeout_s = bucket_bytes, timeout_s
        self._flats: FlatAverage | None = None
        self._orders: list[Order] | None = None
        self._drift: DriftCheck
        self._early: EarlyAverages | None = None
        self._unit = 0.0  # Of weights; 0 before the first step.
        self._has_batch = False
        if worker.global_size > 1:
            start_training(
                worker,
                "averaged gradients",
                "loop with averaged gradients",
                values=values_of([*parameters, *buffers]),
                settings=f"averaged gradients of {len(self._parameters)} parameters, bucket_bytes={bucket_bytes}",
                timeout_s=timeout_s,
            )
            if isinstance(model, torch.nn.Module):
                warn_of_sync_batch_norm(model)
                RunningStats(model, 1.0).keep()
            worker.advanced.announce(bound=2)
        self._intent = intent or worker.advanced.intend(
            "the GradientAverage",
            "was never called: call it as average(len(x)) between backward() and optimizer.step()",
            have_trained(self._parameters),
        )

    def __call__(self, weight: float = 1.0) -> None:
        """Replace the gradients by their averages; a collective call, after ``backward()``.

        Parameters
        ----------
        weight : float
            The w_i: the divisor of this worker's loss, such as ``len(x)``. The default weights all
            workers equally. With 0 this worker has no batch: its own gradients do not count, and it
            gets the averages of the others.

        Raises
        ------
        ConfigurationError
            If the weight is negative or not finite, a gradient is sparse, or parameters differ
            between workers. Each step, on a device each 100th, compares up to 64 values of one
            parameter with their mean. If only one worker raises, the others lose it.
        """
        self.average(weight)
        self.worker.advanced.count_step()

    def average(self, weight: float = 1.0) -> None:
        """Do the same as a call, but count no step."""
        if self.worker.global_size > 1:
            self._begin(weight)
            self._average()

    @contextlib.contextmanager
    def overlapping(self, weight: float = 1.0) -> Iterator[None]:
        """Average the gradients of the one backward pass in the ``with`` block, and during it.

        The last layers' gradients are averaged while those of earlier layers are computed. After
        the block all are averaged. All workers must use it in the same steps. Arguments and errors
        are those of a plain call; it also raises `ConfigurationError` if gradients changed within
        the block after their average had started, for instance in a second backward pass.
        """
        if self.worker.global_size == 1:
            yield
        else:
            self._begin(weight)
            early = self._watched()
            with early.step():
                yield
                self._average(early)
        self.worker.advanced.count_step()

    def close(self) -> None:
        """Remove the hooks of `overlapping` from the parameters."""
        if self._early is not None:
            self._early.close()
        self._early = None

    def _begin(self, weight: float) -> None:
        """Check this worker's step; in the first step, agree on the unit of weights."""
        self._intent.used = True
        weight = require_weight(weight)
        if self._early is not None:
            self._early.wait()  # A step that raised may have left averages in flight.
        for tensor in _leaves(self._model):
            if id(tensor) not in self._known and tensor.requires_grad:
                name = next((name for name, found in _tensors_of(self._model)[0] if found is tensor), "a parameter")
                raise ConfigurationError(
                    f"got {name}, which was added, replaced or unfrozen after its GradientAverage "
                    "was created, so it would differ between workers: create a new "
                    "GradientAverage on all of them, or change the model before prepare"
                )
        if not self._unit:
            # The buffers have the memory order of the parameters, since gradients are copied faster to the same order.
            orders = [order_of(p.shape, p.stride()) or tuple(range(p.ndim)) for p in self._parameters]
            mine = [weight, checksum(np.array(sum(orders, ()), "i4"))]
            given = self.worker.gather(mine, name="weights of batches", timeout_s=self._timeout_s)
            self._unit = unit_of([weight for weight, _ in given], 1.0)
            self._orders = orders if all(order == mine[1] for _, order in given) else None
        self._has_batch = weight > 0
        self._placed().weigh(weight, self._unit)

    def _watched(self) -> EarlyAverages:
        if self._early is None:
            flats = self._placed()
            self._early = EarlyAverages(
                self._parameters, self._fill, flats.combine_bucket, self._parameters[0].device, _CHANGED
            )
            self._early.expect([bucket.members for bucket in flats.buckets])
        return self._early

    def _placed(self) -> FlatAverage:
        device = self._parameters[0].device
        if self._flats is None or self._flats.header.device != device:
            self.close()
            _require_one_device(self._parameters)
            numbers = len(self._parameters) + NUM_SLOTS
            self._flats = FlatAverage(
                self.worker, self._parameters, numbers, device, self._bucket_bytes, self._orders, self._timeout_s
            )
            every = 1 if device.type == "cpu" else STEPS_ON_DEVICES
            self._drift = DriftCheck(self._named, self._flats.header[-NUM_SLOTS:], every)
        return self._flats

    def _average(self, early: EarlyAverages | None = None) -> None:
        """Average the buckets not started in the backward pass, and write all averages."""
        flats = self._placed()
        gradients = [parameter.grad for parameter in self._parameters]
        _require_dense(gradients)
        begun = 0
        if early is not None:
            try:
                begun = early.take(gradients)
            except ConfigurationError:
                early.wait()
                raise
        used = [float(self._has_batch and gradient is not None) for gradient in gradients]
        self._drift.put()
        # On a device one more call costs more than an overlap saves.
        whole = early is None and flats.header.device.type != "cpu"
        flats.finish(gradients, used, begun=begun, whole=whole, before=None if early is None else early.wait)
        self._drift.require_none()
        with torch.no_grad():
            self._write(flats, gradients if self._has_batch else [None] * len(gradients))

    def _fill(self, number: int, gradients: Mapping[int, Tensor]) -> None:
        _require_dense(gradients.values())
        self._placed().fill([self._placed().buckets[number]], gradients)

    def _write(self, flats: FlatAverage, gradients: Sequence[Tensor | None]) -> None:
        """Copy the averages to the gradients; create those that only other workers have."""
        here = [(gradient, view) for gradient, view in zip(gradients, flats.views) if gradient is not None]
        if here:
            torch._foreach_copy_([gradient for gradient, _ in here], [view for _, view in here])
        if len(here) == len(gradients):
            return
        used = flats.header[flats.divisor : flats.divisor + len(gradients)].cpu().tolist()
        for parameter, gradient, view, workers in zip(self._parameters, gradients, flats.views, used):
            if gradient is None:
                parameter.grad = view.clone() if workers else None


def _tensors_of(model: Any) -> tuple[list[tuple[str, Tensor]], list[tuple[str, Tensor]]]:
    """Return the named parameters and buffers of a model; parameters only for other arguments."""
    if isinstance(model, torch.nn.Module):
        return list(model.named_parameters()), list(model.named_buffers())
    if isinstance(model, torch.optim.Optimizer):
        return named_tensors(tensor for group in model.param_groups for tensor in group["params"]), []
    if isinstance(model, torch.Tensor) or not hasattr(model, "__iter__"):
        raise ConfigurationError(f"got {type(model).__name__}: pass a model, its optimizer, or model.parameters()")
    return named_tensors(model), []


def _leaves(model: Any) -> list[Tensor]:
    """Return the current parameters, four times as fast as `torch.nn.Module.parameters`."""
    if isinstance(model, torch.optim.Optimizer):
        return [tensor for group in model.param_groups for tensor in group["params"]]
    if not isinstance(model, torch.nn.Module):
        return [tensor for _, tensor in model]
    found: list[Tensor] = []
    modules: list[Any] = [model]
    seen = {id(model)}
    for module in modules:  # The list grows in the loop.
        found += [tensor for tensor in module._parameters.values() if tensor is not None]
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                modules.append(child)
    return found


def _require_averageable(parameters: Sequence[tuple[str, Tensor]]) -> None:
    if not parameters:
        raise ConfigurationError("got no parameter that requires a gradient: there is nothing to average")
    for name, tensor in parameters:
        on_host = tensor.device.type == "cpu"
        if tensor.is_complex():
            raise ConfigurationError(
                f"got {name}, a tensor of {tensor.dtype}, whose gradients cannot be averaged: keep a parameter of "
                "torch.float32 with a last dimension of 2, and compute with torch.view_as_complex(parameter)"
            )
        if tensor.dtype not in _DTYPES or (on_host and tensor.dtype is torch.bfloat16):
            raise ConfigurationError(
                f"got {name}, a tensor of {tensor.dtype} on {tensor.device}, whose gradients "
                "cannot be averaged there: keep the parameters in torch.float32, and compute in "
                "the other type with torch.autocast"
            )


def _require_one_device(parameters: Sequence[Tensor]) -> None:
    devices = sorted({str(parameter.device) for parameter in parameters})
    if len(devices) > 1:
        raise ConfigurationError(
            f"got parameters on {', '.join(devices)}: the parameters of a GradientAverage must be "
            "on one device; create one for each device"
        )


def _require_dense(gradients: Any) -> None:
    for gradient in gradients:
        if gradient is not None and gradient.layout is not torch.strided:
            raise ConfigurationError(
                "got a sparse gradient, which cannot be averaged: make the layer's gradient "
                "dense, for example with sparse=False"
            )


_DTYPES = {getattr(torch, name) for name in DEVICE_FLOATS}
_CHANGED = (
    "got gradients that changed after their average had started: make one backward pass within "
    "overlapping(), and change gradients after the block; call average(weight) after several "
    "backward passes"
)


class Rhythm:
    """How many backward passes a loop accumulates for a step, known from two equal steps."""

    def __init__(self) -> None:
        self.varies = False  # Closures need averages of each pass.
        self._passes, self._latest = 0, (0, 1)

    def more_come(self) -> bool:
        """Count a backward pass; return whether others are to come before the step."""
        self._passes += 1
        before, latest = self._latest
        return before == latest and self._passes < latest and not self.varies

    def steps(self, rest: bool) -> None:
        """Process a step, with the ``rest`` of a pass over the loader or not."""
        if not rest:
            self._latest = self._latest[1], self._passes
        self._passes = 0


_NUM_VALUES = 64
# Two more slots: the number of values that are not finite, and the step number.
_NOT_FINITE, _TURN = _NUM_VALUES, _NUM_VALUES + 1
NUM_SLOTS = _NUM_VALUES + 2
# Relative to the largest checked value. Rounding on different processors is far below it; other
# steps soon exceed it.
_TOLERANCE, _ROUNDINGS = 1e-3, 8
_TURNS = 1024  # The mean of such numbers is exact enough to detect different ones.
STEPS_ON_DEVICES = 100  # Checks are rarer on devices: each waits for the device.


class DriftCheck:
    """Compares some values of the parameters with their mean over the workers.

    The mean is averaged together with the gradients: ``slots`` are float32 elements of a flat
    buffer, on the parameters' device, that is averaged between `put` and `require_none`. One step
    of ``every`` is checked, the first among them. The values rotate: up to 64 of one parameter per
    check.
    """

    def __init__(self, parameters: Sequence[tuple[str, Tensor]], slots: Tensor, every: int) -> None:
        self._parameters = [(name, tensor) for name, tensor in parameters if tensor.numel()]
        self._slots = slots
        self._own = np.zeros(NUM_SLOTS, np.float32)
        self._every = every
        self._step = -1
        self._name, self._tolerance = "", _TOLERANCE

    def put(self) -> None:
        self._step += 1
        if not self._looks():
            return
        turn, number = divmod(self._step // self._every, len(self._parameters))
        self._name, tensor = self._parameters[number]
        self._tolerance = max(_TOLERANCE, _ROUNDINGS * torch.finfo(tensor.dtype).eps)
        # The tensor is detached here, since .half() or .to() replace its memory.
        values = _part(tensor.detach(), turn)
        self._own[:] = 0
        self._own[: len(values)] = values
        finite = np.isfinite(self._own)
        if not finite.all():
            self._own[~finite] = 0
            self._own[_NOT_FINITE] = NUM_SLOTS - finite.sum()
        self._own[_TURN] = self._step % _TURNS
        self._slots.copy_(torch.from_numpy(self._own))

    def require_none(self) -> None:
        """Raise `ConfigurationError` if the other workers' values differ from those of `put`."""
        if not self._looks():
            return
        own, mean = self._own, self._slots.cpu().numpy()
        *apart, out_of_turn = np.abs(mean - own)
        # A step failed on some workers only: all restart the rotation.
        if out_of_turn > _TOLERANCE:
            self._step = -1
            return
        at = int(np.argmax(apart))
        if apart[_NOT_FINITE] > _TOLERANCE or apart[at] > self._tolerance * np.abs(own[:_NUM_VALUES]).max():
            here, there = (
                f"{values} that are not finite" if at == _NOT_FINITE else f"{values:.6g}"
                for values in (float(own[at]), float(mean[at]))
            )
            raise ConfigurationError(
                f"got {self._name} with other values than on the other workers, {here} instead of "
                f"{there}, their mean: averaged gradients train one model only while all workers "
                "make equal steps from equal values. Load values on all workers, and base "
                "decisions about learning rates and steps on numbers of all workers "
                "(worker.reduce_metrics), not on a loss of this worker's batches"
            )

    def _looks(self) -> bool:
        return bool(self._parameters) and self._step % self._every == 0


def _part(tensor: Tensor, turn: int) -> np.ndarray[Any, Any]:
    """Return up to 64 values of a tensor: in turn the first of each row, then the next ones."""
    start, row = divmod(turn, len(tensor)) if tensor.ndim > 1 else (turn, 0)
    # Only a row is reshaped, since that may copy it.
    values = (tensor[row] if tensor.ndim > 1 else tensor).reshape(-1)
    start = start % -(-len(values) // _NUM_VALUES) * _NUM_VALUES
    part: np.ndarray[Any, Any] = values[start : start + _NUM_VALUES].float().cpu().numpy()
    return part
