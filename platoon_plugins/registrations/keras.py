"""Registration of Keras, JAX and TensorFlow with the base.

Keras imports its back end, so it must not be imported before a fork.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from platoon_base.frameworks import Framework, deterministic_seed

if TYPE_CHECKING:
    from platoon_base.devices import WorkerGpu
    from platoon_base.frameworks import Check

__all__ = ["FRAMEWORK"]

_BACKENDS = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow", "theano": "Theano"}
# The module `tensorflow` comes from any of these distributions.
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly")


def _checks(earlier: Mapping[str, Check]) -> Iterator[Check]:
    from platoon_base.frameworks import importable, installed

    where = "in an environment without Theano: " if installed("theano", "").works else ""
    works = {module for module, name in _BACKENDS.items() if name in earlier and earlier[name].works}
    for module in ("jax", "tensorflow"):
        remedy = f"{where}pip install {module}, if Keras 3 is to run on it"
        distributions = _TENSORFLOW if module == "tensorflow" else ()
        check = importable(_BACKENDS[module], module, remedy, distributions=distributions)
        works |= {module} if check.works else set()
        yield check
    yield _keras(works)


def _keras(works: set[str]) -> Check:
    """Check that Keras can be imported with the back end that it chooses; the remedy names those that work."""
    from platoon_base.frameworks import SETUP, Check, installed, last_line

    found = installed("keras", "pip install 'platoon-plugins[keras]', and torch, jax or tensorflow beside it")
    if not found.works:
        return found._replace(name="Keras")
    version = tuple(int(part) for part in found.finding.split(".")[:2])
    able = ("theano",) if version < (2, 4) else ("torch", "jax", "tensorflow") if version >= (3, 0) else ("tensorflow",)
    usable = [backend for backend in able if backend in works]
    names = " or ".join(_BACKENDS[backend] for backend in able)
    if not usable:
        how = SETUP if able == ("theano",) else f"pip install {' or '.join(able)}"
        return Check("Keras", False, f"{found.finding}, needs {names}, which does not work here", how)
    chosen, reason = last_line("import keras; print(keras.backend.backend())", os.environ)
    if not reason:
        return Check("Keras", True, f"{found.finding}, on {_BACKENDS.get(chosen, chosen)}")
    remedy = f"set KERAS_BACKEND={' or '.join(usable)}"
    set_to = os.environ.get("KERAS_BACKEND")
    with_what = f"KERAS_BACKEND={set_to}" if set_to else "its default back end"
    if all(last_line("import keras", {**os.environ, "KERAS_BACKEND": backend})[1] for backend in usable):
        with_what, remedy = f"KERAS_BACKEND={usable[0]} either", "install it anew"
    return Check("Keras", False, f"{found.finding}, cannot be imported with {with_what}: {reason}", remedy)


def _keep_jax(jax: Any, gpu: WorkerGpu) -> None:
    # JAX 0.11 computes only on device 0 if it sees one device. The driver still sees all, as the center needs.
    if gpu.bring_to_front():
        jax.config.update("jax_cuda_visible_devices", str(gpu.number))


def _keep_tensorflow(tensorflow: Any, gpu: WorkerGpu) -> None:
    devices = tensorflow.config.list_physical_devices("GPU")
    if devices:
        tensorflow.config.set_visible_devices(devices[gpu.number : gpu.number + 1], "GPU")


class _Text(str):
    """A str with the method ``decode`` of bytes."""

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self)


def _restore_decode(saving: ModuleType) -> None:
    """Make h5py 3 return texts with ``decode``, which Keras 2 calls on the attributes of a file; h5py 2 had bytes."""
    attributes = sys.modules.get("h5py._hl.attrs")
    if attributes is None:
        return  # Keras runs without h5py, and raises when it has to save
    manager = attributes.AttributeManager
    read = manager.__getitem__
    if read.__module__ == __name__:
        return

    def read_with_decode(self: Any, name: Any) -> Any:
        value = read(self, name)
        if isinstance(value, str):
            return _Text(value)
        if getattr(value, "dtype", None) == "O":  # an array of texts of variable length
            value.flat = [_Text(item) if isinstance(item, str) else item for item in value.flat]
        return value

    manager.__getitem__ = read_with_decode


def _seed(module: ModuleType) -> None:
    """Seed a framework alike on all workers, if the script has imported `prepare` before it."""
    seeds = sys.modules.get("platoon_plugins.keras.seeds")
    if seeds is not None:
        seeds.seed_imported(module)


def _seed_tensorflow(tensorflow: Any) -> None:
    """Seed TensorFlow, and let it refuse operations that have no deterministic form, under ``--deterministic``."""
    seed = deterministic_seed()
    if seed is not None:
        tensorflow.random.set_seed(seed)
        tensorflow.config.experimental.enable_op_determinism()
    _seed(tensorflow)


_KERAS_2 = "engine.training"
_TRAINING = ("fit", "fit_loop", "train_on_batch", "apply", "apply_gradients")


def _trains(frame: FrameType) -> bool:
    """Return whether this is the frame of a fit behind its first step, or of a step of an optimizer.

    The first step of a fit, and Keras 2 before it, compile for up to minutes.
    """
    name = frame.f_code.co_name
    package, module = _module_of(frame)
    if name not in _TRAINING or package != "keras" or not ("train" in module or "optimizer" in module):
        return False
    if name == "fit":
        return _has_stepped(frame)
    outer = frame.f_back
    while outer is not None:
        package, module = _module_of(outer)
        if package in ("jax", "tensorflow"):  # these trace the step
            return False
        if package == "keras" and outer.f_code.co_name == "fit":
            return module == _KERAS_2 or _has_stepped(outer)
        outer = outer.f_back
    return True


def _has_stepped(fit: FrameType) -> bool:
    values = fit.f_locals
    step = values.get("begin_step", values.get("step", 0))  # Keras 3 has had both names
    return bool(step or values.get("epoch", 0) > values.get("initial_epoch", 0))


def _module_of(frame: FrameType) -> tuple[str, str]:
    package, _, module = frame.f_globals.get("__name__", "").partition(".")
    return package, module


def _has_group() -> bool:
    jax = sys.modules.get("jax._src.distributed")
    return jax is not None and getattr(jax.global_state, "client", None) is not None


FRAMEWORK = Framework(
    # The module of Keras 2 that saves and loads through h5py; Keras 3 has none of that name.
    after_import={"keras.engine.saving": _restore_decode, "torch": _seed, "tensorflow": _seed_tensorflow},
    keep_to_gpu={"jax": _keep_jax, "tensorflow": _keep_tensorflow},
    checks=_checks,
    distributions=("keras", "jax", "tensorflow"),
    variables=("KERAS", "TF", "XLA", "JAX"),
    rule_goes_to="distribute (Keras)",
    reports_by="a fit of Keras",
    center_on_gpu="Keras 3 on torch and JAX",
    trains=_trains,
    one_model_by="In a script of Keras prepare(model) before fit makes them train one model",
    has_group=_has_group,
)
