"""The examples under the original's names: the LSTM in all its forms, and the batched sum over the data channel."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from by_hand import at, end, free_port, until
from needing import needs_theano
from saved_arrays import load

from platoon_base.job.files import running

EXAMPLES = Path(__file__).parents[2] / "examples"
LSTM, BATCHED_SUM = EXAMPLES / "lstm", EXAMPLES / "batched_sum"
LAUNCHER = "from platoon_base.cli.platoon_launcher import main; raise SystemExit(main())"
TIMEOUT_S = 560  # with an empty compile directory it takes two minutes on two busy cores
CHANCE = 0.5  # as many texts of either class


@pytest.fixture
def launcher(tmp_path):
    """Run platoon-launcher with two workers on the CPU; returns its output."""

    def run(experiment, *words):
        done = subprocess.run(
            [sys.executable, "-c", LAUNCHER, *map(str, (experiment, "-D", "cpu", "cpu", *words))],
            cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def module_of(monkeypatch):
    """Import a module of an example, as its scripts do."""

    def load_module(path):
        monkeypatch.syspath_prepend(str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load_module


@needs_theano
@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.slow
def test_the_lstm_learns_by_asynchronous_easgd_started_by_hand(start, tmp_path):
    port = at(free_port())
    path = os.pathsep.join(filter(None, [str(LSTM), os.environ.get("PYTHONPATH")]))
    words = ["--max-mb", 600, "--valid-freq", 200, "--summary", "s.json"]
    controller = start((LSTM / "lstm_controller.py").read_text(), port, *words)
    until(controller, "Controller is ready")
    text = (LSTM / "lstm_worker.py").read_text()
    workers = [start(text, port, "--save", f"{tmp_path}/best.npz", PYTHONPATH=path) for _ in range(2)]
    output = until(controller, '"stopped_by"')
    for worker in workers:
        end(worker)
    end(controller)
    summary = json.loads((tmp_path / "s.json").read_text())
    assert summary["valid_error"] <= 0.75 * CHANCE, output
    assert summary["valid_error"] < summary["first_valid_error"]
    assert summary["stopped_by"] == "mini-batches >= 600"
    assert 600 <= summary["mini_batches"] <= 610  # another worker may have begun ten
    assert load(tmp_path / "best.npz")["embedding"].shape == (2000, 32)
    assert running() == []


@needs_theano
@pytest.mark.timeout(2 * TIMEOUT_S + 20)
@pytest.mark.slow
@pytest.mark.rare
def test_averaged_gradients_by_the_originals_calls_are_those_by_todays(launcher, platoon, tmp_path):
    """The same errors at the same mini-batches, although the programs have other functions and other protocols."""
    words = "--max-mb 400 --valid-freq 200 --summary"
    launcher(LSTM / "lstm", "-c", f"--sync {words} old.json --control-port {free_port()}")
    done = platoon("launch", "-n", 2, LSTM / "lstm.py", "--sync", *words.split(), "new.json")
    assert done.returncode == 0, done.stdout + done.stderr
    old, new = (json.loads((tmp_path / name).read_text()) for name in ("old.json", "new.json"))
    assert old["valid_error"] <= 0.75 * CHANCE
    for key in ("valid_error", "test_error", "mini_batches"):
        assert old[key] == new[key], key
    assert old["validations"] == 3
    assert new["workers"] == 2


@needs_theano
@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.slow
@pytest.mark.rare
def test_the_lstm_learns_by_the_default_rule(platoon, tmp_path):
    done = platoon(
        "launch", "-n", 2, "--summary", "job.json", LSTM / "lstm.py", "--max-mb", 600, "--summary", "script.json"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "script.json").read_text())
    assert summary["valid_error"] <= 0.75 * CHANCE
    assert summary["mini_batches"] == 600
    assert json.loads((tmp_path / "job.json").read_text())["valid_error"] == summary["valid_error"]


@needs_theano
@pytest.mark.slow
@pytest.mark.rare
def test_the_lstm_alone_ends_when_its_patience_does(tmp_path):
    words = ["--max-mb", "600", "--valid-freq", "1", "--patience", "2", "--summary", "s.json"]
    done = subprocess.run(
        [sys.executable, LSTM / "lstm.py", *words], cwd=tmp_path, capture_output=True, text=True, timeout=400,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "s.json").read_text())
    assert summary["workers"] == 1
    assert summary["stopped_by"] == "no better one in 2 validations"
    assert summary["mini_batches"] < 600


# The controller's decisions.


def errors(valid):
    return {"valid_err": valid, "test_err": valid}


@pytest.mark.base
def test_the_controller_validates_now_and_then_and_stops_by_patience(module_of):
    lstm = module_of(LSTM / "lstm_controller.py")
    controller = lstm.LSTMController(1000, 1, 20, control_port=None)

    def ask(req, worker_id=0, info=None):
        return controller.handle_control(req, worker_id, info)

    assert ask("mode") == "async"
    assert [ask("next"), ask("next", 1)] == ["valid", "train"]
    assert ask("pred_errors", 0, errors(0.5)) == "best"
    assert ask("done", 1, {"train_len": 10}) == ""
    assert ask("next") == "train"
    ask("done", 0, {"train_len": 10})
    assert [ask("next", 1), ask("next", 0)] == ["valid", "train"]
    assert ask("pred_errors", 1, errors(0.4)) == "best"
    assert [ask("pred_errors", 0, errors(0.4)), ask("next")] == ["", "train"]
    assert [ask("pred_errors", 0, errors(0.6)), ask("next")] == ["", "stop"]
    assert controller.best == (0.4, 0.4)
    with pytest.raises(ValueError, match="got request 'hello'"):
        ask("hello")


@pytest.mark.base
def test_the_last_mini_batches_are_validated(module_of):
    lstm = module_of(LSTM / "lstm_controller.py")
    controller = lstm.LSTMController(20, 9, 20, control_port=None)
    assert controller.handle_control("next", 0, None) == "valid"
    controller.handle_control("done", 0, {"train_len": 20})
    assert [controller.handle_control("next", 0, None) for _ in range(3)] == ["valid", "stop", "stop"]


@pytest.mark.base
def test_workers_in_step_get_the_same_answers_however_far_one_is_ahead(module_of):
    lstm = module_of(LSTM / "lstm_controller.py")
    controller = lstm.SyncLSTMController(40, 0, 20, control_port=None)
    train = [("next", None), ("done", {"train_len": 20})]
    valid = [("next", None), ("pred_errors", errors(0.5))]
    requests = [("mode", None), *valid, *train, *valid, ("next", None)]
    first = [controller.handle_control(req, 0, info) for req, info in requests]
    assert first == ["sync", "valid", "best", "train", "", "valid", "", "stop"]
    assert [controller.handle_control(req, 1, info) for req, info in requests] == first
    assert controller.trained == 20
    assert len(controller.history) == 2


# The text.


@pytest.mark.base
def test_texts_are_real_of_two_classes_and_of_three_sets_without_overlap(module_of):
    data = module_of(LSTM / "lstm_data.py")
    sets = data.load(500)
    sizes = [len(texts) for texts, _ in sets]
    assert sum(sizes) > 1000
    assert sizes[0] == pytest.approx(8 * sizes[1], rel=0.05)
    texts = [text.tobytes() for texts, _ in sets for text in texts]
    labels = np.concatenate([labels for _, labels in sets])
    assert labels.sum() == len(labels) / 2
    assert all(10 <= len(text) <= 99 and text.min() > 0 and text.max() < 500 for texts, _ in sets for text in texts)
    assert len(set(texts)) > 0.98 * len(texts)  # those that differ by rare words alone look alike
    assert texts == [text.tobytes() for texts, _ in data.load(500) for text in texts]
    assert "the import statement" in " ".join(data.reference())
    assert any(text.startswith("return true if") for text in data.docstrings())


@pytest.mark.base
def test_reviews_of_a_folder_are_split_and_padded(module_of, tmp_path):
    data = module_of(LSTM / "lstm_data.py")
    for kind, word in (("neg", "bad"), ("pos", "good")):
        for part in ("train", "test"):
            (tmp_path / part / kind).mkdir(parents=True)
            for i in range(10):
                text = f"{word} " * (10 + i) + ("same" if part == "train" else "other")
                (tmp_path / part / kind / f"{i}.txt").write_text(text)
    with pytest.raises(ValueError, match="no reviews of 10 to 99 words"):
        data.load(4, tmp_path / "train")
    train, valid, test = data.load(4, tmp_path)
    assert [len(texts) for texts, _ in (train, valid, test)] == [32, 4, 4]
    words, mask, labels = next(data.shuffled(*train, seed=3))
    assert words.shape == mask.shape == (mask.sum(axis=0).max(), data.BATCH_SIZE)
    assert (words > 0).tolist() == mask.astype(bool).tolist()
    first = {label: set(words[0, labels == label]) for label in (0, 1)}  # bad or good
    assert len(first[0]) == len(first[1]) == 1
    assert first[0] != first[1]
    parts = [list(data.in_order(*valid, rank, 3)) for rank in range(3)]
    assert sum(len(batch[2]) for part in parts for batch in part) == 4


# The batched sum.


@pytest.mark.base
def test_the_batched_sum_is_numpys(launcher):
    ports = f"--control-port {free_port()} --data-port {(data := free_port())} --batches 60"
    output = launcher(BATCHED_SUM / "batched_sum", "-c", ports, "-w", f"--data-port {data}")
    rng = np.random.RandomState(0)
    total = sum(int(rng.randint(100, size=(1000, 100)).sum()) for _ in range(60))
    assert f"sum of all: {total}, the controller's own: {total}" in output
    (shares,) = (line for line in output.splitlines() if line.startswith("batches summed: "))
    assert sum(int(share.split()[0]) for share in shares.removeprefix("batches summed: ").split(", ")) == 60
    assert running() == []
