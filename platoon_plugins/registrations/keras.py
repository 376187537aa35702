"""Registration of Keras, JAX and TensorFlow with the base."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from platoon_base.frameworks import Framework, deterministic_seed

if TYPE_CHECKING:
    from platoon_base.devices import WorkerGpu
    from platoon_base.frameworks import Check

_BACKENDS = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow", "theano": "Theano"}
# The module `tensorflow` comes from any of these distributions.
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly")


def _checks(earlier: Mapping[str, Check]) -> Iterator[Check]:
    from platoon_base.frameworks import importable, installed

    where = "in an environment without Theano: " if installed("theano", "").works else ""
    works = {module for module, name in _BACKENDS.items() if name in earlier and earlier[name].works}
    for module in ("jax", "tensorflow"):
        remedy = f"{where}pip install {module} to run Keras 3 on it"
        distributions = _TENSORFLOW if module == "tensorflow" else ()
        check = importable(_BACKENDS[module], module, remedy, distributions=distributions)
        works |= {module} if check.works else set()
        yield check
    yield _keras(works)


def _keras(works: set[str]) -> Check:
    """Check that Keras can be imported with its back end; the remedy names working ones."""
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
        with_what, remedy = f"KERAS_BACKEND={usable[0]} either", "reinstall it"
    return Check("Keras", False, f"{found.finding}, cannot be imported with {with_what}: {reason}", remedy)


def _keep_jax(jax: Any, gpu: WorkerGpu) -> None:
    # JAX 0.11 computes only on device 0 if it sees one device. The driver still sees all of them.
    if gpu.bring_to_front():
        jax.config.update("jax_cuda_visible_devices", str(gpu.number))


def _keep_tensorflow(tensorflow: Any, gpu: WorkerGpu) -> None:
    devices = tensorflow.config.list_physical_devices("GPU")
    if devices:
        tensorflow.config.set_visible_devices(devices[gpu.number : gpu.number + 1], "GPU")


class _Text(str):
    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self)


def _restore_decode(saving: ModuleType) -> None:
    """Give texts of h5py 3 a ``decode``, which Keras 2 calls: h5py 2 returned bytes."""
    attributes = sys.modules.get("h5py._hl.attrs")
    if attributes is None:
        # Without h5py Keras raises when it saves.
        return
    manager = attributes.AttributeManager
    read = manager.__getitem__
    if read.__module__ == __name__:
        return

    def read_with_decode(self: Any, name: Any) -> Any:
        value = read(self, name)
        if isinstance(value, str):
            return _Text(value)
        # This is an array of texts of variable length.
        if getattr(value, "dtype", None) == "O":
            value.flat = [_Text(item) if isinstance(item, str) else item for item in value.flat]
        return value

    manager.__getitem__ = read_with_decode


def _seed(module: ModuleType) -> None:
    """Seed a framework alike on all workers, if the script has imported `prepare` before it."""
    seeds = sys.modules.get("platoon_plugins.keras.seeds")
    if seeds is not None:
        seeds.seed_imported(module)


def _seed_tensorflow(tensorflow: Any) -> None:
    """Seed TensorFlow, and make it refuse nondeterministic operations, with ``--deterministic``."""
    seed = deterministic_seed()
    if seed is not None:
        tensorflow.random.set_seed(seed)
        tensorflow.config.experimental.enable_op_determinism()
    _seed(tensorflow)


# Keras 2 compiles in its `fit`, and trains in `fit_loop`.
_TRAINING = ("fit", "fit_loop", "train_on_batch", "apply", "apply_gradients")


def _trains(frame: FrameType) -> bool:
    """Return whether this is the frame of a fit, or of a step of an optimizer."""
    if frame.f_code.co_name not in _TRAINING:
        return False
    package, _, module = frame.f_globals.get("__name__", "").partition(".")
    compiles = frame.f_code.co_name == "fit" and module.startswith("engine.")
    return package == "keras" and ("train" in module or "optimizer" in module) and not compiles


def _has_group() -> bool:
    jax = sys.modules.get("jax._src.distributed")
    return jax is not None and getattr(jax.global_state, "client", None) is not None


def _export(source: Path, target: Path) -> str:
    from platoon_plugins.registrations.keras_hdf5 import export

    return export(source, target)


FRAMEWORK = Framework(
    # No preload: Keras imports its back end, which must not be imported before a fork.
    # Keras 2 saves and loads through h5py in `keras.engine.saving`; Keras 3 has no such module.
    after_import={"keras.engine.saving": _restore_decode, "torch": _seed, "tensorflow": _seed_tensorflow},
    keep_to_gpu={"jax": _keep_jax, "tensorflow": _keep_tensorflow},
    checks=_checks,
    distributions=("keras", "jax", "tensorflow"),
    variables=("KERAS", "TF", "XLA", "JAX"),
    rule_goes_to="distribute (Keras)",
    reports_by="a fit of Keras",
    export=_export,
    center_on_gpu="Keras 3 on torch and JAX",
    trains=_trains,
    one_model_by="In a script of Keras prepare(model) before fit makes them train one model",
    has_group=_has_group,
)
