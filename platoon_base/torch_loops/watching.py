"""Patches of torch by which a prepared loop learns what the script does."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

UNSCALED = "_platoon_unscaled"  # This attribute of a scaled loss holds the loss itself.
_inside: list[bool] = []  # A backward pass within another one is not counted.


def watch(current: Callable[[], Any]) -> None:
    """Patch torch once, so that the ``current()`` loop learns of backward passes, scaled losses and evaluations."""
    if hasattr(torch.autograd.backward, "tells_loop"):
        return
    plain, scale, train = torch.autograd.backward, torch.amp.GradScaler.scale, torch.nn.Module.train
    unscale, clip_grad = torch.amp.GradScaler.unscale_, torch.nn.utils.clip_grad
    group = clip_grad._group_tensors_by_device_and_dtype

    @functools.wraps(plain)
    def backward(tensors: Any, *args: Any, **options: Any) -> None:
        loop = current()
        if loop is None or _inside:
            plain(tensors, *args, **options)
            return
        _inside.append(True)
        loop.backward_begins()
        try:
            plain(tensors, *args, **options)
        finally:
            _inside.clear()
        loop.backward_ends(tensors)

    @functools.wraps(scale)
    def scale_loss(self: Any, outputs: Any) -> Any:
        scaled = scale(self, outputs)
        if scaled is not outputs and isinstance(scaled, torch.Tensor):
            setattr(scaled, UNSCALED, outputs.detach())
        return scaled

    @functools.wraps(unscale)
    def unscale_gradients(self: Any, optimizer: Any) -> None:
        loop = current()
        if loop is not None:
            loop.before_use(optimizer)
        unscale(self, optimizer)

    @functools.wraps(group)
    def group_gradients(given: Sequence[Sequence[Any]], *args: Any, **options: Any) -> Any:
        loop = current()
        if loop is not None and not torch.compiler.is_compiling():
            loop.before_clipping(given[0])
        return group(given, *args, **options)

    @functools.wraps(train)
    def switch(self: Any, mode: bool = True) -> Any:
        switched = train(self, mode)
        loop = current()
        if loop is not None and any(self in (model, getattr(model, "_orig_mod", None)) for model in loop.models):
            loop.switches(mode)
        return switched

    backward.tells_loop = True  # type: ignore[attr-defined]
    torch.autograd.backward, torch.nn.Module.train = backward, switch
    # Scripts may have imported the clipping functions before; these call this function.
    clip_grad._group_tensors_by_device_and_dtype = group_gradients
    torch.amp.GradScaler.scale, torch.amp.GradScaler.unscale_ = scale_loss, unscale_gradients


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch.compile calls, but does not look through."""
    disabled: list[Any] = []

    def call(*args: Any, **options: Any) -> Any:
        dynamo = sys.modules.get("torch._dynamo")  # Its import takes seconds.
        if dynamo is None:
            return function(*args, **options)
        if not disabled:
            disabled.append(dynamo.disable(function))
        return disabled[0](*args, **options)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call
