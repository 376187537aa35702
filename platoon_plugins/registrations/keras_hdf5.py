"""Conversion of HDF5 models that Keras 2 saved on Theano, for the same results in Keras 3."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from platoon_base.errors import BackendUnavailableError, ConfigurationError

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_PLAIN = ("Conv1D", "Conv2D", "Conv3D", "Conv2DTranspose", "Conv3DTranspose")
_SEPARABLE = ("SeparableConv1D", "SeparableConv2D")
# Theano convolves with these kernels, Keras 3 correlates. Both correlate depthwise kernels.
_FLIPPED = {**dict.fromkeys(_PLAIN, ("kernel",)), "ConvLSTM2D": ("kernel", "recurrent_kernel")}
# The weights that determine the argument of `activation`.
_ACTIVATED = {
    **dict.fromkeys((*_PLAIN, "Dense"), ("kernel", "bias")),
    **dict.fromkeys(_SEPARABLE, ("pointwise_kernel", "bias")),
    "DepthwiseConv2D": ("depthwise_kernel", "bias"),
    "SimpleRNN": ("kernel", "recurrent_kernel", "bias"),
}
# The gates of `recurrent_activation` among the parts of the last axis, and the number of parts.
_GATES = {"LSTM": ((0, 1, 3), 4), "ConvLSTM2D": ((0, 1, 3), 4), "GRU": ((0, 1), 3)}
_HARD = "hard_sigmoid"
# hard_sigmoid: clip(x / 5 + 1/2, 0, 1) in Keras 2, clip(x / 6 + 1/2, 0, 1) in Keras 3.
_SCALE = 1.2


def export(source: Path, target: Path) -> str:
    """Convert a model, and return a line about it; empty if the file is not HDF5."""
    if not source.is_file():
        return ""
    with source.open("rb") as file:
        if file.read(len(_SIGNATURE)) != _SIGNATURE:
            return ""
    changed = ", ".join(convert(source, target)) or "no layer"
    return f"{target}: {source} for Keras 3, without its optimizer; converted: {changed}"


def convert(source: Path, target: Path) -> list[str]:
    """Write a model of Keras 2 on Theano for Keras 3; return the names of the changed layers.

    Convolution kernels are flipped. Weights before a ``hard_sigmoid`` are multiplied by 1.2, as
    Keras 3 divides by 6 where Keras 2 divides by 5. The optimizer is left out.
    """
    try:
        h5py: Any = importlib.import_module("h5py")
    except ImportError as exc:
        raise BackendUnavailableError(
            "h5py is not installed, and is needed to read the file: pip install h5py"
        ) from exc

    with h5py.File(source, "r") as file:
        saved_by = f"Keras {_text(file.attrs.get('keras_version', '?'))} on {_text(file.attrs.get('backend', '?'))}"
        if not (saved_by.startswith("Keras 2.") and saved_by.endswith(" on theano")):
            raise ConfigurationError(
                f"{source} was saved by {saved_by}: only models of Keras 2 on Theano need conversion"
            )
        if "model_config" not in file.attrs:
            raise ConfigurationError(
                f"{source} has only weights, without the layers that they belong to: save the "
                "model with model.save(path)"
            )
        model = json.loads(_text(file.attrs["model_config"]))
        layers = dict(_layers(model))
    if problems := [f"{name}: {why}" for name, layer in layers.items() if (why := _problem(*layer))]:
        raise ConfigurationError(
            f"{source} cannot be converted, because Keras 3 computes these layers differently: {'; '.join(problems)}"
        )
    _modernize(model)
    unfinished = target.with_name(f"{target.name}.{os.urandom(8).hex()}")
    try:
        shutil.copyfile(source, unfinished)
        with h5py.File(unfinished, "r+") as file:
            changed = _rewrite(file["model_weights"], layers)
            file.attrs["model_config"] = json.dumps(model).encode()
            # TensorFlow convolves as Keras 3 does.
            file.attrs["backend"] = "tensorflow"
            for of_optimizer in ("training_config", "optimizer_weights"):
                file.attrs.pop(of_optimizer, None)
                file.pop(of_optimizer, None)
        os.replace(unfinished, target)
    except OSError as exc:
        raise ConfigurationError(f"cannot write {target}: {exc}; name another file") from exc
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
    return changed


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _layers(model: dict[str, Any], name: str = "") -> Iterator[tuple[str, tuple[str, dict[str, Any]]]]:
    """Yield name, class and configuration of all layers; a wrapper has those of its layer."""
    kind, config = model["class_name"], model["config"]
    children = config.get("layers", ()) if isinstance(config, dict) else config
    for child in children:
        yield from _layers(child)
    if isinstance(config, dict) and "layer" in config:
        yield from _layers(config["layer"])
        inner = config["layer"]
        for prefix in ("forward_", "backward_") if kind == "Bidirectional" else ("",):
            own = config["name"] if not prefix else prefix + inner["config"]["name"]
            yield own, (inner["class_name"], inner["config"])
    elif isinstance(config, dict) and "name" in config and not children:
        yield config["name"], (kind, config)


def _problem(kind: str, config: dict[str, Any]) -> str:
    """Return why a layer cannot give the same values in Keras 3; empty if it can."""
    if config.get("activation") == _HARD and kind not in _ACTIVATED:
        return f"activation={_HARD!r} is another function there: use clip(0.2 * x + 0.5, 0, 1) in the model"
    if config.get("interpolation") == "bilinear":
        return "interpolation='bilinear' takes other points"
    if config.get("padding") != "same":
        return ""
    sizes = np.atleast_1d(config.get("kernel_size", config.get("pool_size", ())))
    if any(sizes % 2 == 0) or any(np.atleast_1d(config.get("strides", ())) > 1):
        return "padding='same' with an even size, or with strides, starts at another row: use ZeroPadding and 'valid'"
    return ""


def _modernize(model: dict[str, Any]) -> None:
    """Change a configuration in place: modules of wrapped layers, a separate InputLayer."""
    config = model["config"]
    if "layer" in config:
        config["layer"]["module"] = "keras.layers"
        _modernize(config["layer"])
    layers = config.get("layers", ())
    for layer in layers:
        _modernize(layer)
    if model["class_name"] == "Sequential" and layers and layers[0]["class_name"] != "InputLayer":
        shape = layers[0]["config"].pop("batch_input_shape", None)
        if shape is not None:
            name = f"{layers[0]['config']['name']}_input"
            layers.insert(0, {"class_name": "InputLayer", "config": {"batch_shape": shape, "name": name}})


def _rewrite(group: Any, layers: dict[str, tuple[str, dict[str, Any]]]) -> list[str]:
    """Change the weights of a file in place; return the names of the changed layers."""
    changed: dict[str, None] = {}

    def visit(path: str, weight: Any) -> None:
        if not hasattr(weight, "shape"):
            return
        *folders, variable = path.split("/")
        owner = next((folder for folder in reversed(folders) if folder in layers), None)
        if owner is None:
            return
        before = weight[()]
        after = _converted(before, variable.partition(":")[0], *layers[owner])
        if not np.array_equal(before, after):
            weight[...] = after
            changed[owner] = None

    group.visititems(visit)
    return list(changed)


def _converted(value: Any, variable: str, kind: str, config: dict[str, Any]) -> Any:
    if variable in _FLIPPED.get(kind, ()):
        value = np.flip(value, tuple(range(value.ndim - 2)))
    if config.get("activation") == _HARD and variable in _ACTIVATED.get(kind, ()):
        value = value * value.dtype.type(_SCALE)
    if config.get("recurrent_activation") == _HARD and kind in _GATES:
        gates, parts = _GATES[kind]
        scales = np.ones(parts, value.dtype)
        scales[list(gates)] = _SCALE
        value = value * np.repeat(scales, value.shape[-1] // parts)
    return value
