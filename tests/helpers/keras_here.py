"""The Keras that tests run with; a file that imports from here is skipped where there is none."""

import pytest

from platoon_base import compat

compat.apply()
keras = pytest.importorskip("keras", reason="needs Keras: `make test` runs this file in .venv, .nox/keras3, .nox/tf")

__all__ = ["AS_TENSORS", "KERAS_2", "both_ways", "keras", "needs_keras_3", "on_devices", "on_keras_3", "on_torch"]

KERAS_2 = keras.__version__.startswith("2.")
needs_keras_3 = pytest.mark.skipif(KERAS_2, reason="Keras 2 has no such feature: run it in .nox/keras3 (make test)")

# What the fixture run_keras is told, and `keras_preamble`: torch averages gradients as on CUDA devices, on the CPU, and
# JAX does with the NCCL of `processor_nccl.c`. On torch averages begin in the backward pass, if it is Keras's, as the
# buckets are small; not so with those of their usual size.
AS_TENSORS = {"PLATOON_TEST_TENSORS": "1", "PLATOON_TEST_BUCKET_BYTES": "64", "CUDA_VISIBLE_DEVICES": ""}
_IN_ONE_BUCKET = {name: value for name, value in AS_TENSORS.items() if "BUCKET" not in name}
if keras.backend.backend() == "jax":
    AS_TENSORS |= {"PROCESSOR_NCCL": "", "JAX_PLATFORMS": "cpu"}
# Run a test with gradients that are averaged on the host, and on torch and JAX as tensors too.
_WAYS = {"host": {}, "tensors": AS_TENSORS} if keras.backend.backend() in ("torch", "jax") else {"host": {}}
both_ways = pytest.mark.parametrize("run_keras", _WAYS.values(), ids=_WAYS, indirect=True)
# Run a test with gradients that are averaged as tensors, on torch in the backward pass and behind it.
_TENSORS = {
    "torch": {"in the backward pass": AS_TENSORS, "behind it": _IN_ONE_BUCKET},
    "jax": {"in the step": AS_TENSORS},
}
_TENSORS = _TENSORS.get(keras.backend.backend(), {})
on_devices = pytest.mark.parametrize("run_keras", _TENSORS.values(), ids=_TENSORS, indirect=True)


def on_keras_3(mark):
    """Return a mark that a test has on Keras 3 alone: on Theano it takes many times as long, mostly to compile."""
    return pytest.mark.keras if KERAS_2 else mark


def on_torch(mark):
    """Return a mark that a test has on torch alone, such as a promise that one back end proves for all."""
    return mark if keras.backend.backend() == "torch" else pytest.mark.keras
