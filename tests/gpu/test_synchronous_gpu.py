"""Synchronous rules and averaged gradients on GpuArrays: nothing passes the host; on OpenCL, so no GPU is needed."""

import pytest
from needing import require
from scripts_here import script_path

theano = require("theano")
pytest.importorskip("pygpu", reason="needs pygpu: see docs/compat.md")

pytestmark = [pytest.mark.theano, pytest.mark.slow]

DEVICES = ["opencl0:0"] * 2

# Theano's device is fixed when it is imported, so each test is a job of processes of its own.


@pytest.mark.slow
def test_rules_and_gradients_on_a_device(opencl, run_job):
    run_job(script_path("synchronous_gpu_rules_and_gradients_on_a_device"), devices=DEVICES).require_success()
