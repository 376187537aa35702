"""Jobs of two workers with a center on GPUs, without pygpu, or on the processor as their device."""

import functools
import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from platoon_base.devices.discovery import cuda_devices

__all__ = ["BY_JAX", "COMPUTES", "on_gpus", "runner"]

DEVICES = (cuda_devices().names * 2)[:2]
PREAMBLE = Path(__file__).parent / "cuda_center_preamble.py"
COMPUTES = {
    "torch": "import torch; assert torch.cuda.is_available() and torch.version.cuda",
    "jax": "import jax; assert jax.devices()[0].platform == 'gpu'",
}


@functools.cache
def require_computing(framework):
    """Skip unless a framework computes on GPUs; a process of its own finds out, for tests fork."""
    if not DEVICES:
        pytest.skip(f"needs a CUDA device: {cuda_devices().why_none()}")
    if importlib.util.find_spec("cuda") is None:
        pytest.skip("needs cuda-bindings: pip install 'platoon-plugins[cuda]'")
    done = subprocess.run([sys.executable, "-c", COMPUTES[framework]], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs {framework} on CUDA: {(done.stderr.splitlines() or ['?'])[-1]}")


def on_gpus(run_job, framework):
    """Make a function that runs a script, given as text, on two workers with GPUs, behind `cuda_center_preamble`."""
    require_computing(framework)
    environment = {"KERAS_BACKEND": framework, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

    def run(text, center="device", **options):
        script = PREAMBLE.read_text() + textwrap.dedent(text)
        return run_job(script, 2, devices=DEVICES, center=center, environment=environment, **options)

    return run


def on_processor(run_job, folder, values):
    """Make a function that does the same with the processor as the device, behind `processor_center_preamble`."""
    preamble = PREAMBLE.with_name("processor_center_preamble.py").read_text()
    environment = {"LD_LIBRARY_PATH": str(folder), "VALUES": values}

    def run(text, **options):
        return run_job(preamble + textwrap.dedent(text), 2, center="device", environment=environment, **options)

    return run


def on_processor_by_jax(run_job, folder):
    """Make a function that does the same by JAX, whose CPU is the device, behind `cuda_center_preamble`."""
    if os.environ.get("KERAS_BACKEND") != "jax":
        pytest.skip("about JAX: run it with KERAS_BACKEND=jax")
    environment = {"LD_LIBRARY_PATH": str(folder), "JAX_PLATFORMS": "cpu", "CENTER_ON_PROCESSOR": str(folder)}

    def run(text, center="device", **options):
        script = PREAMBLE.read_text() + textwrap.dedent(text)
        return run_job(script, 2, center=center, environment=environment, **options)

    return run


BY_JAX = pytest.param("jax on the processor", marks=pytest.mark.keras)


def runner(run_job, request):
    """Make the function of the framework, or of the kind of arrays, that a fixture has as its parameter."""
    if request.param in COMPUTES:
        return on_gpus(run_job, request.param)
    folder = request.getfixturevalue("processor_driver")
    if request.param in ("in place", "copies"):
        return on_processor(run_job, folder, request.param)
    return on_processor_by_jax(run_job, folder)
