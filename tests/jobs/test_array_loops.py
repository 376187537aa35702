"""`prepare` for loops of NumPy and JAX: against one process, with the rules of the center; mistakes; alone."""

import importlib.util
import subprocess
import sys

import pytest
from scripts_here import script_path

pytest.importorskip("jax", reason="needs JAX: `make test` runs this file in .nox/keras3")

pytestmark = [pytest.mark.keras, pytest.mark.backend, pytest.mark.timeout(600)]
# What is not installed is not tested; .nox/keras3 has all.
PACKAGES = [name for name in ("optax", "flax", "equinox") if importlib.util.find_spec(name)]


@pytest.mark.promise
def test_averaged_gradients_equal_one_process(run_job):
    """Unequal batches, clipping, schedules, masks, accumulation, scan, donated arguments, NNX, Equinox, NumPy."""
    run_job(script_path("array_loops_sync"), args=PACKAGES).require_success()


@pytest.mark.promise
@pytest.mark.parametrize("case", ["default", "none", "period", "EASGD", "DiLoCo"])
def test_all_workers_have_one_model_after_each_pass(run_job, case):
    outcome = run_job(script_path("array_loops_async"), args=[case, *PACKAGES]).require_success()
    assert outcome.result.reported["trained"].endswith("3 epochs, async")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_loaders_metrics_and_mistakes(run_job, mode):
    outcome = run_job(script_path("array_loops_gathered"), args=[mode]).require_success()
    assert [log.count("printed by") for log in outcome.logs] == [1, 0]


@pytest.mark.parametrize(("mode", "error"), [("sync", "WorkerLostError"), ("async", "NonFiniteError")])
def test_errors_within_compiled_steps_are_raised_as_they_are(run_job, mode, error):
    logs = run_job(script_path("array_loops_errors"), args=[mode]).logs
    assert sum(f"raised {error} at" in log for log in logs) == 1
    assert mode == "async" or "if any(connect().gather(bool(loss < 0.1))): break" in logs[0]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_training_that_never_averages_is_warned_of(run_job, mode):
    outcome = run_job(script_path("array_loops_never"), args=[mode]).require_success()
    for log in outcome.logs:
        assert "prepare (array_loops_never.py:13) was followed by no step that" in log


@pytest.mark.parametrize(
    ("name", "words"),
    [("array_loops_sync", PACKAGES), ("array_loops_async", ["default", *PACKAGES]), ("array_loops_gathered", ["sync"])],
)
@pytest.mark.parametrize("workers", [0, 1], ids=["plain", "launched"])
def test_one_process_trains_as_without(run_job, tmp_path, name, words, workers):
    if workers:
        run_job(script_path(name), workers=1, args=words).require_success()
    else:
        subprocess.run([sys.executable, script_path(name), tmp_path, *words], check=True, timeout=300, cwd=tmp_path)
