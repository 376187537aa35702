"""The benchmarks that others are meant to run, in a small form."""

import gzip
import json
import os
import re
import smtplib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest
from needing import needs_theano

from platoon_base import compat

compat.apply()

pytestmark = pytest.mark.slow

# One back end is enough for a script, and half a minute.
needs_torch = pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND") != "torch", reason="needs Keras on torch: `make test` runs this in .nox/keras3"
)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def lstm(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS / "scripts"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import lstm

    return lstm


@pytest.fixture
def learning(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import learning

    return learning


@pytest.fixture
def learning_report(learning):
    import learning_report

    return learning_report


@needs_theano
@pytest.mark.rare
def test_the_originals_api_is_measured_in_pairs_of_windows(tmp_path):
    words = {"units": 8, "vocabulary": 20, "repeats": 4, "requests": 5, "out": tmp_path}
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "original_api.py", *(f"--{name}={value}" for name, value in words.items())],
        cwd=tmp_path, capture_output=True, text=True, timeout=440, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "original_api.json").read_text())
    assert len(written["ratios"]) == 2 * 4
    assert written["goal"]["measured"] == sorted(written["ratios"])[4] / 2 + sorted(written["ratios"])[3] / 2
    assert min(written["rates"].values()) > 1
    assert written["request_us"] > 1


@needs_theano
@pytest.mark.timeout(800)  # seven starts, the first of which may compile
@pytest.mark.rare
def test_lstm_measures_all_kinds_and_keeps_its_results(tmp_path):
    done = subprocess.run(
        [
            sys.executable, BENCHMARKS / "lstm.py", "--devices", "cpu", "cpu", "--units", "8", "--vocabulary", "20",
            "--seconds", "0.3", "--repeats", "2", "--out", tmp_path,
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=780, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout, done.stdout
    written = json.loads((tmp_path / "lstm.json").read_text())
    rows = {(row["kind"], row["devices"]): row for row in written["results"]}
    job = ["workers that never synchronize", "EASGD, asynchronous", "EASGD, synchronous"]
    expected = {("plain loop", 1), ("plain loops, one a device", 2), *((kind, n) for kind in job for n in (1, 2))}
    assert set(rows) == expected
    assert rows["plain loop", 1]["runs"] == 4
    assert rows["plain loop", 1]["x_plain"] == 1
    assert all(row["runs"] == 2 for key, row in rows.items() if key != ("plain loop", 1))
    assert all(0 < row["lowest"] <= row["rate"] <= row["highest"] for row in rows.values())
    for row in rows.values():
        assert row["kind"] in done.stdout
    assert not list(tmp_path.glob("platoon_logs*")), "the logs go with the temporary folder"


@needs_theano
def test_the_rate_is_that_of_the_common_window(lstm):
    one = [0.0, 1.0, 2.0, 3.0, 4.0]
    assert lstm.total_rate([one]) == pytest.approx(1)
    assert lstm.total_rate([one, [2.0, 2.5, 3.0, 3.5, 4.0, 4.5]]) == pytest.approx(3)
    assert lstm.total_rate([one, [5.0, 6.0]]) == 0


@needs_theano
def test_the_model_has_the_size_of_the_originals(lstm):
    import lstm_model

    count = lstm_model.VOCABULARY * 1024 + 2 * 1024 * 4096 + 4096 + 2 * 1024 + 2
    assert count == 18_634_754
    shapes = [p.get_value(borrow=True).shape for p in lstm_model.parameters(50, 8)]
    assert shapes == [(50, 8), (8, 32), (8, 32), (32,), (8, 2), (2,)]


@needs_theano
def test_batches_are_padded_to_their_longest_review_and_differ_between_workers(lstm):
    import lstm_model

    batches = lstm_model.reviews(20, vocabulary=100, seed=1)
    for words, mask, labels in batches:
        lengths = mask.sum(axis=0)
        assert words.shape == mask.shape == (lengths.max(), 16)
        assert 30 <= lengths.min() <= lengths.max() <= 99
        assert (mask[:-1] >= mask[1:]).all()
        assert not words[mask == 0].any()
        assert set(labels) <= {0, 1}
    assert any((a[0].shape != b[0].shape) for a, b in zip(batches, lstm_model.reviews(20, 100, seed=2)))


def test_calls_of_many_members_are_timed(tmp_path):
    command = [sys.executable, BENCHMARKS / "rendezvous.py", "--members", "3", "40", "--rounds", "2", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    seconds = json.loads((tmp_path / "rendezvous.json").read_text())["seconds"]
    assert set(seconds) == {"3", "40"}
    assert all(0 < took < 100 for kinds in seconds.values() for took in kinds.values())


@pytest.mark.timeout(600)
def test_runs_with_the_same_bits_are_timed(tmp_path):
    command = [sys.executable, BENCHMARKS / "deterministic.py", "--quick", "--out", tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "deterministic.json").read_text())["results"]
    assert len(rows) == 3
    assert all(0 < row["share"] < 100 for row in rows)


def test_failures_are_timed(tmp_path):
    command = [sys.executable, BENCHMARKS / "failures.py", "--jobs", "1", "--out", tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (seconds,) = json.loads((tmp_path / "failures.json").read_text())["seconds"]
    assert 0 < seconds < 100


@pytest.mark.keras
@needs_torch
@pytest.mark.timeout(400)
def test_large_models_of_keras_are_measured(tmp_path):
    words = ["--megabytes", "8", "--ways", "plain", "EASGD", "averaged gradients", "--out", str(tmp_path)]
    command = [sys.executable, BENCHMARKS / "keras_large.py", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("keras-large-*.json")
    rows = json.loads(path.read_text())["results"]
    assert [row["way"] for row in rows] == ["plain", "EASGD", "averaged gradients"]
    for row in rows:
        assert row["megabytes"] == 8
        assert 0 < row["step_s"] < 100
        assert 0 < row["epoch_end_s"] < 100


@pytest.mark.keras
@needs_torch
@pytest.mark.timeout(400)
def test_loops_of_torch_are_compared_with_distributed_data_parallel(tmp_path):
    command = [sys.executable, BENCHMARKS / "torch_ddp.py", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "torch_ddp.json").read_text())["results"]
    ways = ["alone", "DDP", "DDP again", "average", "overlapping"]
    assert [(row["gradients"], row["way"]) for row in rows] == [(m, way) for m in ("20 KB", "10 MB") for way in ways]
    assert all(row["step_ms"] > 0 and row["over_ddp"] > 0 for row in rows)


@pytest.mark.keras
@needs_torch
@pytest.mark.timeout(400)
def test_keras_fit_measures_all_ways_and_keeps_its_results(tmp_path):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "keras_fit.py", "--quick", "--out", tmp_path],
        cwd=tmp_path, capture_output=True, text=True, timeout=380, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("keras-*.json")
    written = json.loads(path.read_text())
    rows = {(row["model"], row["way"]): row for row in written["results"]}
    ways = ["plain again", "callbacks", "EASGD", "averaged gradients"]
    assert set(rows) == {(model, way) for model in ("small", "10 MB") for way in ways}
    for (model, _), row in rows.items():
        assert row["pairs"] == 4
        assert row["plain_step_ms"] > 0
        assert row["step_ms"] > 0
        assert row["parameters"] == (4810 if model == "small" else 2_629_130)
    assert rows["10 MB", "averaged gradients"]["bare_all_reduce_ms"] > 0
    assert "sync_ms" in rows["10 MB", "EASGD"]
    assert len(written["goals"]) == 3


@pytest.mark.keras
@needs_torch
@pytest.mark.rare
def test_keras_alone_is_compared_with_plain_python(tmp_path):
    command = [sys.executable, BENCHMARKS / "keras_alone.py", "--quick", "--out", tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("keras-alone-*-cpu.json")
    written = json.loads(path.read_text())
    found = [(row["model"], row["way"], row["pairs"]) for row in written["results"]]
    ways = ["averaged gradients", "callbacks"]
    assert sorted(found) == [(model, way, 4) for model in ("10 MB", "convolutional") for way in ways]
    assert all(row["step, ms"] > 0 and row["of plain's speed"] > 0 for row in written["results"])


def learn(folder, *words, **environment):
    """Run the study of digits in its small form; returns the process that has ended."""
    return subprocess.run(
        [sys.executable, BENCHMARKS / "learning.py", "--task", "digits", "--quick", "--out", folder, *words],
        env={**os.environ, **environment},
        cwd=folder, capture_output=True, text=True, timeout=460, check=False,
    )  # fmt: skip


@pytest.mark.keras
@needs_torch
def test_learning_measures_methods_and_keeps_its_results(tmp_path):
    methods = ["--methods", "defaults", "averaged-linear", "--slow", "1", "--jobs", "2", "--epochs", "3"]
    done = learn(tmp_path, *methods)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "learning-digits.json").read_text())
    best, rates = written["best_rate"], written["options"]["rates"]
    plain = [("plain", 1, rate, None) for rate in rates]
    names = {"defaults": best, "averaged-linear": 2 * best}
    others = [(name, 2, rate, slow) for name, rate in names.items() for slow in (None, 1)]
    key = ("method", "workers", "rate", "slow")
    runs = {tuple(run[name] for name in key): run for run in written["runs"]}
    rows = {tuple(row[name] for name in key): row for row in written["results"]}
    assert list(runs) == list(rows) == plain + others, "in the order of the methods, whichever ended first"
    for (method, workers, _, slow), run in runs.items():
        assert len(run["curve"]) == 3
        # 1,437 rows in mini-batches of 32; of two workers the first has one row more.
        full = 3 * (45 if workers == 1 else 23)
        half = 3 * 11 if slow and method == "defaults" else full
        assert run["steps_by_rank"] == [full, half][:workers]
        assert run["curve"][-1][0] == full
        assert 0.5 < run["final"] <= run["best"] <= 1
        assert (run["at_once"], run["seconds_hold"]) == (2, False)
        # 64 x 32 + 32 + 32 x 10 + 10 numbers of 4 bytes, there and back; the default's in each step and at an epoch's
        # end, with Adam's two moments.
        defaults = 3 * 3 * (24 + (12 if slow else 24))
        exchanges = {"plain": 0, "defaults": defaults, "averaged-linear": 2 * full}[method]
        assert run["bytes_sent"] == exchanges * 2 * 4 * 2410
        assert method in done.stdout
    assert written["runs_at_once"] == 2
    assert rows["plain", 1, best, None]["to_target"]["0.93"]["times_fewer_steps"] == 1
    again = learn(tmp_path, *methods, "--resume")
    assert again.returncode == 0, again.stdout + again.stderr
    assert " after " not in again.stdout, "nothing is run a second time"
    assert json.loads((tmp_path / "learning-digits.json").read_text())["runs"] == written["runs"]
    other = learn(tmp_path, "--epochs", "7", "--resume")
    assert other.returncode == 1
    assert "{'epochs': 3}" in other.stderr


@needs_theano
@pytest.mark.rare
def test_the_tasks_on_lasagne_train_the_same_networks(tmp_path):
    words = ["--methods", "defaults", "averaged", "--slow", "1", "--rates", "0.005", "--epochs", "3"]
    done = learn(tmp_path, "--framework", "lasagne", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "learning-digits-lasagne.json").read_text())
    assert written["framework"] == "Lasagne"
    runs = {(run["method"], run["slow"]): run for run in written["runs"]}
    assert list(runs) == [("plain", None), ("defaults", None), ("defaults", 1), ("averaged", None), ("averaged", 1)]
    # Of 1,437 rows two synchronous workers leave one out: 718 are 23 mini-batches, the last one smaller.
    by_rank = {("plain", None): [135], ("defaults", 1): [69, 33]}
    for key, run in runs.items():
        assert run["parameters"] == 2410
        assert run["steps_by_rank"] == by_rank.get(key, [69, 69])
        assert 0.3 < run["final"] <= run["best"] <= 1
        assert run["curve"][-1][1] > 0
    # The default synchronizes the parameters and Adam's moments in each of 69 and 33 steps, and at the end of training.
    assert runs["defaults", 1]["bytes_sent"] == (70 + 34) * 3 * 2 * 4 * 2410
    assert runs["averaged", 1]["bytes_sent"] == (69 + 69) * 2 * 4 * 2410


def test_steps_to_a_target_lie_between_two_validations(learning_report):
    curve = [(10, 1.0, 0.5), (20, 2.0, 0.7), (30, 3.0, 0.6), (40, 5.0, 0.9)]
    assert learning_report.first_reach(curve, 0.4) == {"steps": 10, "seconds": 1.0}
    assert learning_report.first_reach(curve, 0.6) == pytest.approx({"steps": 15, "seconds": 1.5})
    assert learning_report.first_reach(curve, 0.8) == pytest.approx({"steps": 30 + 20 / 3, "seconds": 3 + 4 / 3})
    assert learning_report.first_reach(curve, 0.95) is None
    falling = [(steps, seconds, 1 - value) for steps, seconds, value in curve]
    assert learning_report.first_reach(falling, 0.4, lower=True) == pytest.approx({"steps": 15, "seconds": 1.5})
    assert learning_report.first_reach(falling, 0.05, lower=True) is None


def run_of(method, workers, rate, steps, best=0.9, slow=None):
    """Return a run that reached 0.8 after 5 steps and 0.9 after so many, or never."""
    reach = {"0.8": {"steps": 5, "seconds": 0.5}, "0.9": steps and {"steps": steps, "seconds": steps / 10}}
    return {
        "method": method, "workers": workers, "rate": rate, "seed": 1, "curve": [(5, 0.5, 0.8), (50, 5.0, best)],
        "to_target": reach, "best": best, "final": best, "bytes_sent": 2e6, "slow": slow, "seconds_hold": True,
    }  # fmt: skip


def failed_run(method, workers, rate):
    run = {**run_of(method, workers, rate, None), "curve": [], "failed": "status 1", "best": None, "final": None}
    return {**run, "to_target": {"0.8": None, "0.9": None}, "bytes_sent": None}


def test_the_learning_rate_kept_is_that_of_the_fewest_steps_to_the_highest_target(learning_report):
    slow, fast, lucky = 0.1, 0.2, 0.3
    runs = [
        run_of("plain", 1, rate, steps) for rate in (slow, fast) for steps in ((40, 30) if rate == slow else (20, 30))
    ]
    runs += [run_of("plain", 1, lucky, steps) for steps in (10, None, None)]  # most of its runs never arrive
    assert learning_report.best_rate(runs, (0.8, 0.9)) == fast
    nobody = [run_of("plain", 1, rate, None, best) for rate, best in ((slow, 0.85), (fast, 0.87), (lucky, 0.86))]
    assert learning_report.best_rate(nobody, (0.8, 0.9)) == fast
    assert learning_report.best_rate(nobody, (0.9, 0.8), lower=True) == slow
    with pytest.raises(SystemExit, match="status 1"):
        learning_report.best_rate([failed_run("plain", 1, slow)], (0.8, 0.9))


def test_a_run_that_never_arrives_or_fails_is_shown(learning_report, capsys):
    runs = [run_of("plain", 1, 0.1, steps) for steps in (40, 20, 30)]
    runs += [run_of("averaged", 2, 0.1, 15), run_of("averaged", 2, 0.1, None), run_of("averaged", 2, 0.1, 10)]
    runs += [run_of("easgd-10", 2, 0.1, 10), run_of("easgd-10", 2, 0.1, None), failed_run("easgd-10", 2, 0.1)]
    plain, averaged, easgd = rows = learning_report.summarize(runs, (0.8, 0.9), 0.1)
    assert plain["to_target"]["0.9"]["steps"] == 30
    assert averaged["to_target"]["0.9"]["steps"] == 15, "never is longer than 10 and 15"
    assert averaged["to_target"]["0.9"]["times_fewer_steps"] == 2
    assert easgd["to_target"]["0.9"]["steps"] is None
    assert easgd["to_target"]["0.9"]["reached"] == 1
    assert easgd["to_target"]["0.8"]["reached"] == 2
    assert easgd["failed"] == 1
    assert [learning_report.cell(row["to_target"]["0.9"], 3) for row in rows] == [
        "30 (20 to 40)",
        "15 (10 to 15; 1 of 3 never)",
        "2 of 3 never",
    ]
    learning_report.show(
        {
            "targets": (0.8, 0.9),
            "results": rows,
            "options": {"task": "digits", "epochs": 2, "seeds": [1, 2, 3]},
            "framework": "none",
        }
    )
    assert "never" in capsys.readouterr().out


def test_seconds_are_told_only_where_they_hold(learning_report, capsys):
    results = {"targets": (0.8, 0.9), "framework": "none", "options": {"task": "digits", "epochs": 2, "seeds": [1]}}
    runs = [run_of("plain", 1, 0.1, 47), run_of("averaged", 2, 0.1, 23)]
    learning_report.show({**results, "results": learning_report.summarize(runs, (0.8, 0.9), 0.1)})
    assert "2.3" in capsys.readouterr().out
    runs[1]["seconds_hold"] = False
    rows = learning_report.summarize(runs, (0.8, 0.9), 0.1)
    learning_report.show({**results, "results": rows})
    told = capsys.readouterr().out
    assert "4.7" in told
    assert "2.3" not in told
    assert "in place of seconds" in told


def test_a_slow_worker_costs_those_that_wait_twice_the_time(learning_report):
    runs = [run_of("plain", 1, 0.1, 40), run_of("easgd-10", 2, 0.1, 20), run_of("averaged", 2, 0.1, 20)]
    runs += [run_of("easgd-10", 2, 0.1, 25, slow=1), run_of("averaged", 2, 0.1, 20, slow=1)]
    rows = {(row["method"], row["slow"]): row for row in learning_report.summarize(runs, (0.8, 0.9), 0.1)}
    found = rows["easgd-10", 1]["to_target"]["0.9"]
    assert (found["fast_steps"], found["share_of_speedup"]) == (25, 0.8)
    found = rows["averaged", 1]["to_target"]["0.9"]
    assert (found["fast_steps"], found["share_of_speedup"]) == (40, 0.5)
    assert "fast_steps" not in rows["averaged", None]["to_target"]["0.9"]


def test_every_method_says_its_rate_and_how_often_it_sends(learning):
    methods = learning.METHODS
    assert [methods[name].scale(4) for name in ("averaged", "averaged-sqrt", "averaged-linear")] == [1, 2, 4]
    assert "arXiv" in methods["averaged-linear"].rate
    assert [name for name in ("averaged", "easgd-10", "diloco-20", "plain") if methods[name].waits] == [
        "averaged",
        "diloco-20",
    ]
    assert "DiLoCo(outer_lr=0.7, momentum=0.9) every 20" in methods["diloco-paper-20"].what
    assert all(method.what for method in methods.values())
    # Of 3 epochs of 25 steps: after 10 and 20 steps of each and at its end.
    counts = {name: methods[name].exchanges(75, 3) for name in ("plain", "easgd-10", "easgd-4-sqrt", "averaged")}
    assert counts == {"plain": 0, "easgd-10": 9, "easgd-4-sqrt": 21, "averaged": 75}


def test_gpus_are_divided_evenly_among_hosts(tmp_path):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "keras_gpu.py", "--gpus", "3", "--hosts", "2", "--out", tmp_path],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "got --gpus 3 --hosts 2" in done.stderr
    assert not list(tmp_path.iterdir())


def test_as_many_runs_go_side_by_side_as_have_gpus_of_their_own(learning):
    gpus = ["cuda0", "cuda1", "cuda2", "cuda3"]
    assert [learning.side_by_side(0, workers, gpus) for workers in (1, 2, 3, 4, 8)] == [4, 2, 1, 1, 1]
    assert learning.side_by_side(3, 4, gpus) == 3


def test_jobs_side_by_side_begin_with_different_gpus(learning, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    gpus = ["cuda0", "cuda1", "cuda2"]
    assert learning.device_options(2, 0, gpus) == ["-D", "cuda0", "cuda1"]
    assert learning.device_options(2, 1, gpus) == ["-D", "cuda2", "cuda0"]
    assert learning.device_options(4, 0, gpus) == ["-D", "cuda0", "cuda1", "cuda2", "cuda0"]
    assert learning.device_options(2, 1, []) == ["-n", 2, "-D", "cpu"]
    assert learning.environment("keras", gpus)["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert learning.environment("keras", [])["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--jobs", "0"], "got --jobs 0"),
        (["--slow", "0"], "got --slow 0"),
        (["--slow", "2", "--workers", "2", "4"], "got --slow 2"),
        (["--device", "cuda"], "got --device cuda"),
        (["--device", "cuda", "--framework", "lasagne"], "got --device cuda with Lasagne"),
        (["--task", "stdlib-lstm", "--framework", "keras"], "stdlib-lstm is written for lasagne"),
    ],
)
def test_a_study_that_cannot_be_made_is_refused(tmp_path, words, told):
    done = learn(tmp_path, *words, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert told in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not find_spec("matplotlib"), reason="needs matplotlib: `make setup` installs it")
def test_the_plots_are_drawn_from_the_results_alone(learning_report, tmp_path):
    runs = [run_of("plain", 1, 0.1, 40), run_of("averaged", 2, 0.1, 15), failed_run("easgd-10", 2, 0.1)]
    results = {
        "targets": [0.8, 0.9], "best_rate": 0.1, "framework": "none", "value": "accuracy", "runs": runs,
        "options": {"task": "digits", "epochs": 2, "seeds": [1]},
        "results": learning_report.summarize(runs, (0.8, 0.9), 0.1),
    }  # fmt: skip
    (tmp_path / "results.json").write_text(json.dumps(results))
    drawn = []
    for words in ([], ["--methods", "averaged"]):
        done = subprocess.run(
            [sys.executable, BENCHMARKS / "learning.py", "--plot", tmp_path / "results.json", *words],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        drawn.append((tmp_path / "results.png").read_bytes())
        assert drawn[-1].startswith(b"\x89PNG")
    assert drawn[0] != drawn[1]


@pytest.mark.skipif(not find_spec("matplotlib"), reason="needs matplotlib: `make setup` installs it")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of matplotlib's import, which others than pytest do not see
def test_the_picture_of_the_readme_shows_the_figures_of_one_run(learning, tmp_path):
    import learning_picture

    root = Path(__file__).parents[2]
    results = json.loads((root / "docs/benchmarks/learning-defaults-fashion-mnist.json").read_text())
    for mode in ("light", "dark"):
        learning_picture.draw(results, tmp_path / "made.svg", mode)
        made, kept = (
            (path / name).read_text()
            for path, name in ((tmp_path, "made.svg"), (root / "docs", f"learning-{mode}.svg"))
        )
        words = [re.findall(r">([^<>\n]*[a-z][^<>\n]*)</text>", text) for text in (made, kept)]
        assert words[0] == words[1]
        assert len([word for word in words[1] if "process:" in word or "workers:" in word]) == 3
    texts = [(root / name).read_text() for name in ("README.md", "docs/index.md")]
    times = [re.search(r"([\d.]+) times fewer", word)[1] for word in words[1] if "times" in word]
    assert all(value in text for value in times for text in texts)


def test_fashion_mnist_is_read_from_the_package_or_its_name_is_told(learning, tmp_path):
    from scripts import learning_tasks

    with pytest.raises(learning_tasks.DataMissing, match="apt-get install dataset-fashion-mnist"):
        learning_tasks.fashion_mnist(tmp_path)
    for part, rows in (("train", 3), ("t10k", 2)):
        sizes = b"".join(size.to_bytes(4, "big") for size in (rows, 28, 28))
        with gzip.open(tmp_path / f"{part}-images-idx3-ubyte.gz", "wb") as file:
            file.write(b"\0\0\x08\x03" + sizes + bytes([0, 255] * (rows * 28 * 14)))
        with gzip.open(tmp_path / f"{part}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(b"\0\0\x08\x01" + sizes[:4] + bytes(range(rows)))
    (x, y), (x_valid, y_valid) = learning_tasks.fashion_mnist(tmp_path)
    assert (x.shape, y.shape, x_valid.shape, y_valid.shape) == ((3, 784), (3, 10), (2, 784), (2, 10))
    assert x[0, :4].tolist() == [0, 1, 0, 1]
    assert y.argmax(axis=1).tolist() == [0, 1, 2]
    with gzip.open(tmp_path / "t10k-labels-idx1-ubyte.gz", "wb") as file:
        file.write(b"no array")
    with pytest.raises(ValueError, match="no IDX file"):
        learning_tasks.fashion_mnist(tmp_path)


def test_the_first_folder_with_the_data_counts(learning, tmp_path):
    from scripts import learning_tasks

    (tmp_path / "there").mkdir()
    with pytest.raises(learning_tasks.DataMissing, match="there/train"):
        learning_tasks.fashion_mnist(tmp_path / "missing", tmp_path / "there", tmp_path)


@pytest.mark.parametrize("missing", ["apt-get", "package"])
def test_make_data_says_why_it_cannot_fetch(tmp_path, missing):
    if missing == "package":
        (tmp_path / "apt-get").write_text("#!/bin/sh\nexit 100\n")
        (tmp_path / "dpkg").write_text("#!/bin/sh\n")
        (tmp_path / "mkdir").symlink_to(which("mkdir"))
        for name in ("apt-get", "dpkg"):
            (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", BENCHMARKS.parent / ".ci" / "fetch_data", tmp_path / "data"],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert {"apt-get": "FASHION_MNIST", "package": "apt-get update"}[missing] in done.stderr


@needs_torch
@pytest.mark.parametrize(
    ("task", "parameters", "one", "classes"),
    [("fashion-mnist-resnet", 273_370, (28, 28, 1), (10,)), ("stdlib-transformer", 115_809, (50,), (50, 97))],
)
@pytest.mark.keras
def test_networks_have_the_size_that_the_study_says(learning, monkeypatch, task, parameters, one, classes):
    monkeypatch.syspath_prepend(str(BENCHMARKS / "scripts"))
    import learning_networks
    import learning_tasks
    import numpy as np

    model = learning_networks.build(learning_tasks.TASKS[task].network)
    assert model.count_params() == parameters
    probabilities = np.array(model(np.zeros((2, *one), "float32" if len(one) > 1 else "int32")).detach())
    assert probabilities.shape == (2, *classes)
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)


def test_characters_are_those_of_the_sources_and_the_next_ones(learning):
    from scripts import learning_tasks

    (x, y), (x_valid, y_valid) = learning_tasks.stdlib()
    assert x.shape == y.shape
    assert x_valid.shape == y_valid.shape
    assert x.shape[1] == x_valid.shape[1] == 50
    assert x.max() < learning_tasks.TASKS["stdlib-lstm"].network.classes
    assert (x.ravel()[1:] == y.ravel()[:-1]).all()
    source = Path(smtplib.__file__).read_text()[:50]
    assert source.isascii()
    assert "".join("\n" if number == 95 else chr(32 + number) for number in x_valid[0]) == source


def test_without_the_data_it_says_how_to_install_them_and_runs_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "learning.py", "--task", "fashion-mnist", "--out", tmp_path],
        env={**os.environ, "FASHION_MNIST": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert "apt-get install dataset-fashion-mnist" in line
    assert not list(tmp_path.iterdir())


def test_excerpt_measures_all_methods(tmp_path):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "excerpt.py", "--quick", "--rows", "300"],
        cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(
        r"^ *(take, new array|take, kept array|excerpt|copyto) +([124]) +[\d.]+ ", done.stdout, re.MULTILINE
    )
    alone = {("take, new array", "1"), ("take, kept array", "1")}
    assert set(rows) == alone | {(method, n) for method in ("excerpt", "copyto") for n in "124"}
    assert "against numpy.take, kept array, in one process" in done.stdout


@needs_theano
@pytest.mark.rare
def test_function_call_compares_all_ways(tmp_path):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "function_call.py", "--quick", "--out", tmp_path],
        cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for way in ("a loop on each worker", "the same once more", "new values averaged", "data in own memory"):
        assert sum(way in line for line in done.stdout.splitlines()) == 4  # 1 and 2 workers, two sizes of batches


def test_all_ways_to_exchange_between_simulated_hosts_are_compared(tmp_path):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "hosts_overlap_simulation.py", "--quick", "--out", tmp_path],
        cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^([24]) hosts, (.+) each 20, (.+?) +over: .+; worth [\d.]+ ", done.stdout, re.MULTILINE)
    assert len(set(rows)) == len(rows) == 11 + 14
    assert {("4", "NoLoCo", "pairs"), ("2", "DiLoCo", "4 fragments, tau 5, keeps progress")} < set(rows)
    assert not list(tmp_path.iterdir())


def test_simulated_hosts_go_through_a_whole_job_on_the_real_coordinator(tmp_path):
    """Join, share parameters, train, wait for each other, stop and leave; on one host, and on three."""
    words = ["--hosts", "1", "3", "--rounds", "3", "--seconds", "0.5", "--out", tmp_path]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "hosts_simulation.py", *map(str, words)],
        cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "hosts_simulation.json").read_text())
    assert [each["workers"] for each in written["results"]] == [8, 24]
    for each in written["results"]:
        assert min(each["barrier"].values()) > 0
        assert each["training"]["requests_per_s"] > 0
        assert each["stop_s"] > 0
    assert all(each["ratio"] > 0 for each in written["goals"])
