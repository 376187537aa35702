"""`prepare` for loops of PyTorch: against one process, with the rules of the center, mistakes; the script alone."""

import subprocess
import sys

import pytest
from scripts_here import script_path

pytest.importorskip("torch", reason="needs torch: `make test` runs this file in .nox/keras3")

pytestmark = [pytest.mark.keras, pytest.mark.timeout(600)]


@pytest.mark.promise
def test_averaged_gradients_equal_one_process(run_job):
    """Clipping, accumulation, a closure, GradScaler, two models, no optimizer, compiled, schedulers, EMA."""
    run_job(script_path("torch_prepare_sync")).require_success()


@pytest.mark.promise
@pytest.mark.parametrize("cases", [["default", "none"], ["period", "EASGD", "DiLoCo"]], ids=lambda cases: cases[0])
def test_all_workers_have_one_model_after_each_pass(run_job, cases):
    outcome = run_job(script_path("torch_prepare_async"), args=cases).require_success()
    assert outcome.result.reported["trained"].endswith("Adam, 3 epochs, async")
    assert 0 < outcome.result.reported["loss"] < 1


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_metrics_get_each_row_once_and_one_worker_prints_and_saves(run_job, mode):
    outcome = run_job(script_path("torch_prepare_gathered"), args=[mode]).require_success()
    assert [log.count("printed by") for log in outcome.logs] == [1, 0]


def test_the_same_rows_on_all_workers_are_warned_of(run_job):
    outcome = run_job(script_path("torch_prepare_alike")).require_success()
    assert ["the first gradients are equal on all 2 workers" in log for log in outcome.logs] == [True, False]


@pytest.mark.promise
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_training_that_never_averages_is_warned_of(run_job, mode):
    outcome = run_job(script_path("torch_prepare_never"), args=[mode]).require_success()
    for log in outcome.logs:
        assert "prepare (torch_prepare_never.py:18) was followed by no step that synchronizes" in log
        assert "trains without a batch of the DataLoaders that prepare returned" in log


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torch_prepare_sync", []),
        ("torch_prepare_async", ["default", "DiLoCo"]),
        ("torch_prepare_gathered", ["sync"]),
        ("torch_prepare_gathered", ["async"]),
    ],
)
@pytest.mark.parametrize("workers", [0, 1], ids=["plain", "launched"])
def test_one_process_trains_as_without(run_job, tmp_path, name, words, workers):
    if workers:
        run_job(script_path(name), workers=1, args=words).require_success()
    else:
        command = [sys.executable, script_path(name), tmp_path, *words]
        subprocess.run(command, check=True, timeout=300, cwd=tmp_path)
