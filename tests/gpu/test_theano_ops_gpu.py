"""The Ops on GpuArrays: lifted as Theano's own are, and with the host's values; on OpenCL, so no GPU is needed."""

import subprocess
import sys

import pytest
from needing import require
from scripts_here import script_path

theano = require("theano")
pytest.importorskip("pygpu", reason="needs pygpu: see docs/compat.md")

pytestmark = [pytest.mark.theano, pytest.mark.slow]

DEVICES = ["opencl0:0"] * 2


@pytest.fixture
def run_on_device(opencl, run_job):
    """Run a script on two workers, both on the OpenCL device."""

    def run(name):
        return run_job(script_path(name), devices=DEVICES).require_success()

    return run


@pytest.mark.slow
def test_what_lies_on_the_device_stays_there(run_on_device):
    run_on_device("theano_ops_gpu_stays_there")


@pytest.mark.slow
def test_synchronizing_device_arrays_is_synchronizing_host_arrays(opencl, run_job):
    found = [
        run_job(script_path("theano_ops_gpu_sync"), args=[place], devices=devices).require_success().reported
        for place, devices in (("device", DEVICES), ("host", None))
    ]
    assert len(found[0]) == 27
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_packing_on_the_device(run_on_device):
    run_on_device("theano_ops_gpu_packing")


def test_packing_by_one_kernel_on_cuda():
    """A call that doubles the buffer stands in for two ranks that hold the same."""
    probe = [sys.executable, "-c", "import pygpu; pygpu.init('cuda0')"]
    if subprocess.run(probe, capture_output=True, timeout=120, check=False).returncode:
        pytest.skip("needs a CUDA device")
    found = subprocess.run(
        [sys.executable, script_path("theano_ops_gpu_packing_on_cuda")],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert found.returncode == 0, found.stderr
