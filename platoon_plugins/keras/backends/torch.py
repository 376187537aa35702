"""Keras 3 on torch: weights, and on the CPU gradients, are changed in place by NumPy views."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch

from platoon_base.dtypes import PLAIN, Array
from platoon_base.errors import ConfigurationError
from platoon_base.torch_arrays import TensorMemory
from platoon_base.torch_loops import EarlyAverages, tensors_beside
from platoon_plugins.keras.backends.keras3 import Keras3, KerasVariable, loss_weights_of
from platoon_plugins.keras.backends.torch_gradients import TorchAverage, require_dense_layers
from platoon_plugins.keras.gradients import average_of
from platoon_plugins.keras.optimizers import ModelAverages

Tensor = Any

_HOOK = "register_post_accumulate_grad_hook"  # torch 2.1


def early_weights(model: Any) -> list[Tensor]:
    """Return the weights whose averages may start in the backward pass; none if any may not."""
    # Keras's own train_step makes one backward pass for one call of the optimizer.
    if getattr(model.train_step, "__func__", None) is not keras.Model.train_step:
        return []
    weights = [weight.value for weight in model.trainable_weights]
    # Weights of torch modules may have no gradient, though Keras lists them as trainable.
    can = (weight.is_leaf and weight.requires_grad and hasattr(weight, _HOOK) for weight in weights)
    return weights if all(can) else []


def watched_function(model: Any, early: EarlyAverages) -> Callable[..., Any]:
    """Return a model's train_function with early averages, until trainable layers change."""
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


class _TorchVariable(TensorMemory, KerasVariable):
    def tensor(self) -> Any:
        return self.variable.value

    def on_host(self) -> bool:
        return bool(self.variable.value.device.type == "cpu")

    def view(self) -> Array:
        if self.dtype not in PLAIN:
            return super().view()
        array: Array = self.variable.value.detach().cpu().numpy()
        return array


class _Torch(Keras3):
    variable = _TorchVariable

    def require_trainable(self, model: Any, averaged: bool) -> None:
        if self.trains_together(model):
            raise ConfigurationError(
                f"got torch.distributed initialized: Keras {keras.__version__} then trains with "
                "DistributedDataParallel, and the workers would be synchronized twice. Call "
                "neither init_process_group nor keras.distribution.initialize() in this script; "
                "or fit without distribute() and with a plain optimizer, and pass each worker "
                "its rows"
            )
        if averaged and model.jit_compile:
            raise ConfigurationError(
                "got a model compiled with jit_compile=True and a DistributedOptimizer: "
                "torch.compile cannot trace the averages of gradients; call model.compile(..., "
                "jit_compile=False), or for a loaded model set model.jit_compile = False, or "
                "compile with a plain optimizer and train with a rule: distribute(..., "
                "rule=EASGD())"
            )
        if averaged:
            require_dense_layers(model)

    def statistics(self, model: Any) -> list[Any]:
        """Return the variables, and tensors of torch modules that are no variables of Keras."""
        known = {id(variable.value) for variable in model.variables}
        modules = [layer for layer in model._flatten_layers() if isinstance(layer, torch.nn.Module)]
        return [*super().statistics(model), *tensors_beside(modules, known)]

    def trains_together(self, model: Any) -> bool:
        """Return whether Keras (from 3.16 on) trains on all processes of torch.distributed."""
        group = torch.distributed
        return hasattr(model, "ddp_model") and group.is_available() and group.is_initialized()

    def seed(self, seed: int, model: Any = None) -> None:
        """Seed torch, which shuffles data and draws the masks of Dropout."""
        super().seed(seed, model)
        torch.manual_seed(seed)

    def random_state(self) -> Any:
        on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        return super().random_state(), torch.get_rng_state(), on_gpus

    def restore_random_state(self, state: Any, common_seed: int) -> None:
        of_keras, on_host, on_gpus = state
        super().restore_random_state(of_keras, common_seed)
        torch.set_rng_state(on_host)
        torch.rand(())
        if on_gpus:
            torch.cuda.set_rng_state_all(on_gpus)

    def average(self, worker: Any) -> TorchAverage:
        return TorchAverage(worker)

    def gradient_device(self, model: Any) -> torch.device | None:
        """Return the CUDA device that has all trainable weights, or None."""
        devices = {weight.value.device for weight in model.trainable_weights}
        return devices.pop() if len(devices) == 1 and next(iter(devices)).type == "cuda" else None

    def place_gradients(self, model: Any, average: ModelAverages, worker: Any) -> None:
        """Average gradients on the devices, if each worker has all of them on one device."""
        # Averages start in the backward pass if all workers use Keras's train_step and one
        # optimizer.
        device = self.gradient_device(model)
        only: Any = average_of(getattr(model, "optimizer", None)) if len(average.members) == 1 else None
        weights = [] if only is None else early_weights(model)
        answers = worker.gather([device is not None, bool(weights)], name="where gradients are averaged")
        on_devices, early = (all(answer) for answer in zip(*answers))
        # Without NCCL they are averaged on the host anyway.
        if on_devices and worker.advanced.compresses_gradients:
            on_devices = worker.advanced.stays_on_device(torch.empty(0, device=device))
        average.place(device if on_devices else None)
        if on_devices and early:
            (loss_weight,) = loss_weights_of(model)
            watched = only.watch_backward(weights, loss_weight.peek)
            if watched is not None:
                model.make_train_function()
                model.train_function = watched_function(model, watched)

    def call_on_host(self, call: Callable[..., None], values: Sequence[Any], model: Any) -> None:
        call(*(value.detach() if torch.is_tensor(value) else value for value in values))


def backend() -> _Torch:
    return _Torch()
