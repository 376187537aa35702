"""`prepare` for loops of PyTorch, of NumPy and of JAX: against one process, with rules, mistakes; the script alone."""

import importlib.util
import json
import subprocess
import sys

import pytest
from loop_cases import ERRORS_WITHIN_STEPS
from needing import marks_of, needs_loops
from scripts_here import script_path

pytestmark = pytest.mark.timeout(600)
needs_torch, needs_jax = needs_loops("torch"), needs_loops("jax")
# What is not installed is not tested; .nox/keras3 has all.
PACKAGES = [name for name in ("optax", "flax", "equinox") if importlib.util.find_spec(name)]
TORCH, ARRAYS = marks_of(needs_torch), marks_of(needs_jax)
both = pytest.mark.parametrize(
    "loops", [pytest.param("torch_prepare", marks=TORCH), pytest.param("array_loops", marks=ARRAYS)]
)
modes = pytest.mark.parametrize("mode", ["sync", "async"])


@both
@pytest.mark.promise
def test_averaged_gradients_equal_one_process(run_job, loops):
    outcome = run_job(script_path(f"{loops}_sync"), args=PACKAGES).require_success()
    # What the script prepares at its end and does not train is no separate model.
    assert outcome.result.shared_nothing == ()
    assert not any("was followed by no step" in log for log in outcome.logs)


@both
@pytest.mark.promise
@pytest.mark.parametrize("cases", [["default", "none"], ["period", "EASGD", "DiLoCo"]], ids=lambda cases: cases[0])
def test_all_workers_have_one_model_after_each_pass(run_job, loops, cases):
    reported = run_job(script_path(f"{loops}_async"), args=[*cases, *PACKAGES]).require_success().reported
    assert reported["trained"].endswith("3 epochs, async")
    if loops == "torch_prepare":
        assert "Adam" in reported["trained"]
        assert 0 < reported["loss"] < 1


@both
@modes
def test_metrics_get_each_row_once_and_one_worker_prints_and_saves(run_job, loops, mode):
    outcome = run_job(script_path(f"{loops}_gathered"), args=[mode]).require_success()
    assert [log.count("printed by") for log in outcome.logs] == [1, 0]


@needs_torch
def test_the_same_rows_on_all_workers_are_warned_of(run_job):
    outcome = run_job(script_path("torch_prepare_alike")).require_success()
    assert ["the first gradients are equal on all 2 workers" in log for log in outcome.logs] == [True, False]


@needs_torch
@pytest.mark.parametrize("way", ["apart", "prepared"])
def test_learning_rates_that_come_to_differ_are_warned_of(run_job, way):
    outcome = run_job(script_path("torch_prepare_rates"), args=[way]).require_success()
    said = "the learning rates of the workers differ: pass schedulers such as ReduceLROnPlateau to prepare"
    assert [said in log for log in outcome.logs] == [way == "apart"] * 2


@needs_jax
@pytest.mark.parametrize(("case", "error"), ERRORS_WITHIN_STEPS)
def test_errors_within_compiled_steps_are_raised_as_they_are(run_job, case, error):
    logs = run_job(script_path("array_loops_errors"), args=[case]).logs
    assert sum(f"raised {error} at" in log for log in logs) == 1
    assert case != "sync" or "if any(connect().gather(bool(loss < 0.1))): break" in logs[0]


@needs_jax
@pytest.mark.parametrize("end", ["close", "exit"])
def test_an_error_of_the_last_step_is_raised_however_a_training_ends(run_job, end):
    outcome = run_job(script_path("array_loops_ends"), args=[end])
    assert outcome.result.status
    assert [outcome.logs[1].count(f"raised by {by}") for by in ("common", "prepare", "close")] == [1, 1, end == "close"]
    assert "raised by" not in outcome.logs[0]
    assert end == "close" or "ERROR platoon_base.array_loops.loops: NonFiniteError" in outcome.logs[1]


@pytest.mark.parametrize("loops", ["arrays", pytest.param("torch", marks=TORCH)])
def test_a_loop_that_is_resumed_twice_continues_at_the_epoch_of_both(platoon, tmp_path, loops):
    command = ["launch", "-n", 2, "--log-dir", "logs", "--resume", "kept", "--summary", "s.json"]
    for end, start in ((3, 1), (5, 3), (7, 5)):
        done = platoon(*command, script_path("prepare_resumed"), tmp_path, loops, end).require()
        assert done.logs[0].endswith(f"started at {start}\n")
        assert f"{end} epochs" in json.loads((tmp_path / "s.json").read_text())["trained"]


@pytest.mark.parametrize("loops", ["arrays", pytest.param("torch", marks=TORCH)])
def test_all_workers_of_an_asynchronous_loop_are_restarted_together(platoon, tmp_path, loops):
    command = ["launch", "-n", 2, "--log-dir", "logs", "--resume", "kept"]
    command += ["--checkpoint-every", 0.2, "--max-restarts", 1]
    done = platoon(*command, script_path("prepare_resumed"), tmp_path, loops, 4, tmp_path / "kept").require()
    assert "cannot restart rank 1 alone: restarting all workers" in " ".join(done.stdout.split())
    assert all("started at" in log for log in done.logs)


@both
@modes
@pytest.mark.promise
def test_a_training_that_never_averages_is_warned_of(run_job, loops, mode):
    outcome = run_job(script_path(f"{loops}_never"), args=[mode]).require_success()
    line = {"torch_prepare": 14, "array_loops": 8}[loops]
    for log in outcome.logs:
        assert f"prepare ({loops}_never.py:{line}) was followed by no step that" in log
        assert loops == "array_loops" or "trains without a batch of the DataLoaders that prepare returned" in log


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("torch_prepare_sync", [], marks=TORCH),
        pytest.param("torch_prepare_async", ["default", "DiLoCo"], marks=TORCH),
        pytest.param("torch_prepare_gathered", ["sync"], marks=TORCH),
        pytest.param("torch_prepare_gathered", ["async"], marks=TORCH),
        pytest.param("array_loops_sync", PACKAGES, marks=ARRAYS),
        pytest.param("array_loops_async", ["default", *PACKAGES], marks=ARRAYS),
        pytest.param("array_loops_gathered", ["sync"], marks=ARRAYS),
    ],
)
@pytest.mark.parametrize("workers", [0, 1], ids=["plain", "launched"])
def test_one_process_trains_as_without(run_job, tmp_path, name, words, workers):
    if workers:
        run_job(script_path(name), workers=1, args=words).require_success()
    else:
        subprocess.run([sys.executable, script_path(name), tmp_path, *words], check=True, timeout=300, cwd=tmp_path)
