"""PyTorch loops on CUDA devices: the tests of `jobs/test_torch_loops.py` there."""

import pytest
from scripts_here import script_path

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test` runs this file in .nox/keras3")

DEVICES = [f"cuda{i}" for i in range(torch.cuda.device_count())][:2]
pytestmark = [
    pytest.mark.keras,
    pytest.mark.loops,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not DEVICES, reason="needs a CUDA device (see tests/README.md)"),
]


@pytest.mark.parametrize("way", ["behind", "overlapping"])
def test_averaged_gradients_equal_one_process(run_job, way):
    run_job(script_path("torch_loops_equal_one_process"), args=[way], devices=(DEVICES * 2)[:2]).require_success()


@pytest.mark.parametrize("workers", ["01", "0"])
@pytest.mark.parametrize("way", ["behind", "overlapping"])
def test_channels_last_equals_one_process(run_job, workers, way):
    """On both workers, or on the first alone: then the memory of their gradients differs."""
    run_job(script_path("torch_loops_memory_format"), args=[workers, way], devices=(DEVICES * 2)[:2]).require_success()


@pytest.mark.parametrize("rule", ["default", "EASGD", "moments", "averaged", "DiLoCo"])
def test_a_module_trains_with_every_kind_of_rule(run_job, rule):
    run_job(script_path("torch_loops_rules"), args=[rule], devices=(DEVICES * 2)[:2]).require_success()
