"""Theano on devices: the Ops, the training call and the original's worker; CUDA, or else OpenCL on the CPU.

Theano's device is fixed when it is imported, so each test is a job or a process of its own.
"""

import os
import subprocess
import sys

import pytest
from devices_here import DEVICES
from needing import require
from programs import run_python
from scripts_here import script_path

theano = require("theano")
pytest.importorskip("pygpu", reason="needs pygpu: see docs/compat.md")

pytestmark = [pytest.mark.theano, pytest.mark.slow]

OPENCL = ["opencl0:0"] * 2
needs_devices = pytest.mark.skipif(
    len(DEVICES) < 2, reason="no devices: run `make setup` on Debian 12, which installs pygpu and OpenCL"
)


@pytest.mark.parametrize(
    "script",
    [
        "theano_ops_gpu_stays_there",
        "theano_ops_gpu_packing",
        "synchronous_gpu_rules_and_gradients_on_a_device",
    ],
)
def test_on_opencl(opencl, run_job, script):
    run_job(script_path(script), devices=OPENCL).require_success()


@needs_devices
@pytest.mark.parametrize(
    "script",
    [
        "one_training_call_is_that_of_one_process",
        "reductions_and_slices_of_resident_data",
        "the_original_s_worker_on_devices",
    ],
)
def test_function(run_job, script):
    run_job(script_path(f"function_gpu_{script}"), devices=DEVICES[:2]).require_success()


def test_synchronizing_device_arrays_is_synchronizing_host_arrays(opencl, run_job):
    found = [
        run_job(script_path("theano_ops_gpu_sync"), args=[place], devices=devices).require_success().reported
        for place, devices in (("device", OPENCL), ("host", None))
    ]
    assert len(found[0]) == 27
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_packing_by_one_kernel_on_cuda():
    """A call that doubles the buffer stands in for two ranks that hold the same."""
    probe = [sys.executable, "-c", "import pygpu; pygpu.init('cuda0')"]
    if subprocess.run(probe, capture_output=True, timeout=120, check=False).returncode:
        pytest.skip("needs a CUDA device")
    run_python(script_path("theano_ops_gpu_packing_on_cuda"), timeout=400)


def test_a_function_on_a_device_is_pickled_with_the_name_of_its_context(opencl, tmp_path):
    env = {**os.environ, "POCL_CACHE_DIR": str(tmp_path)}
    env["THEANO_FLAGS"] = f"{env.get('THEANO_FLAGS', '')},device=opencl0:0,force_device=True,floatX=float32"
    run_python(script_path("compat_theano_pickled_on_a_device"), env=env, timeout=100)
