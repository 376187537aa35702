"""State of a torch model that no gradient trains: first values, buffers, an optimizer's moments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import numpy as np
import torch

from platoon_base.dtypes import COLLECTIVE, Array
from platoon_base.errors import ConfigurationError
from platoon_base.torch_loops.running_stats import RunningStats, warn_of_sync_batch_norm
from platoon_base.worker import DEFAULT_TIMEOUT_S, State, Worker, agree, require_weight

Tensor = Any


class TensorValue:
    """A tensor with the methods of `Variable`, to copy first values; see `start_training`.

    Values of other dtypes than those of collective calls are converted without loss: bfloat16 to
    float32, bool to uint8, other integers to int64, and complex numbers to pairs of floats.
    """

    def __init__(self, name: str, tensor: Tensor, rule: str = "") -> None:
        if tensor.layout is not torch.strided:
            raise ConfigurationError(
                f"got {name} of layout {tensor.layout}, which cannot be copied to other workers: "
                "make it dense; or use the same one on all workers, and pass model.parameters(), "
                "which copies no buffers"
            )
        self.name = name
        self._tensor = tensor.detach()
        self.rule = rule or ("mean" if tensor.is_floating_point() or tensor.is_complex() else "first")

    def get_value(self, borrow: bool = False) -> Array:
        """Return the value as C-contiguous host array; with ``borrow`` its memory if possible."""
        tensor = torch.view_as_real(self._tensor.resolve_conj()) if self._tensor.is_complex() else self._tensor
        if tensor.dtype not in _EXCHANGED:
            integer = torch.uint8 if tensor.dtype is torch.bool else torch.int64
            tensor = tensor.to(torch.float32 if tensor.dtype.is_floating_point else integer)
        array: Array = tensor.contiguous().cpu().numpy()
        return array if borrow else array.copy()

    def set_value(self, value: Array) -> None:
        tensor = torch.from_numpy(value)
        self._tensor.copy_(torch.view_as_complex(tensor) if self._tensor.is_complex() else tensor)


_EXCHANGED = {getattr(torch, name) for name in COLLECTIVE}


def named_tensors(tensors: Iterable[Any]) -> list[tuple[str, Tensor]]:
    found = []
    for i, given in enumerate(tensors):
        name, tensor = given if isinstance(given, tuple) else (f"parameter {i}", given)
        if not isinstance(tensor, torch.Tensor):
            raise ConfigurationError(
                f"got {type(tensor).__name__} as {name}: pass a model, its optimizer, or model.parameters()"
            )
        found.append((str(name), tensor))
    return found


def average_buffers(worker: Worker, model: Any, weight: float = 1.0, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
    """Make the buffers of a model, such as BatchNorm's statistics, equal on all workers.

    ::

        b := sum_i w_i b_i / sum_i w_i        over the workers that still take part

    Integer and bool buffers, such as ``num_batches_tracked``, become those of the first worker that
    counts. So do the singular vectors of torch's ``spectral_norm``: the mean of two with opposite
    signs is about 0. Sparse buffers do not change.

    A collective call, before each evaluation and before a model is saved: each worker's running
    statistics are those of its own batches. From the second call on, and from the first after
    `GradientAverage`, BatchNorm's statistics move further than their mean, as far as one process
    moves them in N times as many steps.

    Parameters
    ----------
    worker : Worker
    model : torch.nn.Module
        With the same buffers on every worker, else all raise `LayoutMismatchError`.
    weight : float
        The w_i, such as the number of this worker's rows; 0 for a worker whose buffers should not
        count.
    """
    require_weight(weight)
    if worker.global_size == 1:
        return
    warn_of_sync_batch_norm(model)
    buffers = tensors_beside([model], {id(parameter) for parameter in model.parameters()})
    if not buffers:
        return
    running = RunningStats(model, weight)
    steps = running.steps()
    states = [State(buffer, buffer.rule) for buffer in buffers]
    states.append(State(TensorValue("steps", torch.from_numpy(steps)), "sum", np.zeros_like(steps)))
    agree(states, worker, "average_buffers", weight, timeout_s=timeout_s)
    running.correct(steps)


def tensors_beside(modules: Sequence[Any], known: Set[int]) -> list[TensorValue]:
    """Return the modules' buffers and parameters, except sparse ones and the ``known`` ids."""
    seen, found = set(known), []
    for module in modules:
        vectors = _singular_vectors(module)
        for name, tensor in [*module.named_buffers(), *module.named_parameters()]:
            if id(tensor) not in seen and tensor.layout is torch.strided:
                found.append(TensorValue(name, tensor, "first" if id(tensor) in vectors else ""))
            seen.add(id(tensor))
    return found


def _singular_vectors(model: Any) -> set[int]:
    """Return the ids of buffers with singular vectors, of torch's two kinds of spectral_norm."""
    found = []
    for module in model.modules():
        if _is_of_torch(module, "_SpectralNorm"):
            found += module.buffers()
        for hook in module._forward_pre_hooks.values():
            if _is_of_torch(hook, "SpectralNorm"):
                found += [getattr(module, f"{hook.name}_u"), getattr(module, f"{hook.name}_v")]
    return {id(buffer) for buffer in found}


def _is_of_torch(what: Any, name: str) -> bool:
    """Return whether it is of a class in torch.nn.utils, by the name: one class is private."""
    return any(cls.__name__ == name and cls.__module__.startswith("torch.nn.utils.") for cls in type(what).__mro__)


def moments_of(optimizer: Any) -> list[Tensor]:
    """Return the moments of an optimizer: its float state with the shapes of its parameters.

    Pass them to `Worker.init_shared_params` as ``moments``, for a rule such as
    ``EASGD(moments=True)``. They are in the order of the parameters, and of the names of the state;
    counters of steps are left out.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        After its first step, in which torch creates the state, else it raises `ConfigurationError`;
        also if it keeps no moments.
    """
    found, without = found_moments(optimizer)
    if without:
        raise ConfigurationError(
            f"got {type(optimizer).__name__} without moments of {len(without)} parameters, the "
            f"first of shape {without[0]}: torch creates them in the first step with a gradient "
            "of the parameter, so make one step before; an optimizer without moments, such as "
            "SGD without momentum, needs a rule with moments=False"
        )
    return found


def found_moments(optimizer: Any) -> tuple[list[Tensor], list[tuple[int, ...]]]:
    """Return the moments of an optimizer, and the shapes of the parameters without any."""
    found, without = [], []
    for parameter in (p for group in optimizer.param_groups for p in group["params"] if p.requires_grad):
        state = optimizer.state.get(parameter, {})
        moments = [state[name] for name in sorted(state) if name != "step" and _like(state[name], parameter)]
        found += moments
        if not moments:
            without.append(tuple(parameter.shape))
    return found, without


def _like(value: Any, parameter: Tensor) -> bool:
    return bool(torch.is_tensor(value) and value.is_floating_point() and value.shape == parameter.shape)


def values_of(tensors: Sequence[tuple[str, Tensor]]) -> list[TensorValue]:
    return [TensorValue(name, tensor) for name, tensor in tensors]


def parameters_of(optimizer: Any) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def all_named(models: Sequence[Any], optimizers: Sequence[Any]) -> list[tuple[str, Tensor]]:
    """Return all parameters, each once, with names that differ."""
    several = len(models) > 1
    found: dict[int, tuple[str, Tensor]] = {}
    for number, model in enumerate(models):
        for name, parameter in model.named_parameters():
            found.setdefault(id(parameter), (f"{number}.{name}" if several else name, parameter))
    for number, optimizer in enumerate(optimizers):
        for i, parameter in enumerate(parameters_of(optimizer)):
            found.setdefault(id(parameter), (f"parameter {i} of optimizer {number}", parameter))
    return list(found.values())


_LEAST_CHANGES = 3  # Loading a checkpoint changes a parameter less often.


def have_trained(parameters: Sequence[Tensor]) -> Callable[[], bool]:
    """Return a function that returns whether steps have changed the parameters since this call."""

    def versions() -> int:
        return sum(parameter._version for parameter in parameters)

    least = versions() + _LEAST_CHANGES * len(parameters)
    return lambda: bool(parameters) and versions() >= least
