"""A rank of Theano that cannot use CUDA's driver, in a job with one that can."""

import pytest
from scripts_here import script_path

pytest.importorskip("pygpu", reason="needs pygpu: see docs/compat.md")
pytestmark = pytest.mark.theano


def test_the_others_learn_that_a_rank_cannot_use_the_driver_and_all_combine_by_the_host(run_job, processor_driver):
    """Rank 0 has no driver. Rank 1 has all that NCCL needs: the processor is its device."""
    outcome = run_job(
        script_path("unusable_driver_all_combine_by_the_host"), environment={"LD_LIBRARY_PATH": str(processor_driver)}
    ).require_success()
    assert "cannot load libcuda-of-no-machine.so" in outcome.logs[0]
    assert "use host memory (rank 0: no CUDA device, so no NCCL)" in outcome.logs[1]
