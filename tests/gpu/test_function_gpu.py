"""One training call, resident data and the original's worker on devices: CUDA, or else OpenCL on the CPU."""

import pytest
from needing import require
from scripts_here import script_path

require("theano")
pytest.importorskip("pygpu", reason="needs pygpu: see docs/compat.md")

from devices_here import DEVICES

if len(DEVICES) < 2:
    pytest.skip("no devices: run `make setup` on Debian 12, which installs pygpu and OpenCL", allow_module_level=True)

pytestmark = [pytest.mark.theano, pytest.mark.slow]

# Theano's device is fixed when it is imported, so each test is a job of processes of its own.


def test_one_training_call_is_that_of_one_process_on_all_rows(run_job):
    """Inputs from the host and from shared memory, uneven batches, and rows that lie on the devices and stay there."""
    run_job(script_path("function_gpu_one_training_call_is_that_of_one_process"), devices=DEVICES[:2]).require_success()


def test_reductions_and_slices_of_resident_data(run_job):
    """Rows are weighted alike however many slices there are; a worker that selects none adds nothing."""
    run_job(script_path("function_gpu_reductions_and_slices_of_resident_data"), devices=DEVICES[:2]).require_success()


def test_the_original_s_worker_on_devices(run_job):
    """Its `shared`, `all_reduce` and center take arrays that lie on a device; values by hand."""
    run_job(script_path("function_gpu_the_original_s_worker_on_devices"), devices=DEVICES[:2]).require_success()
