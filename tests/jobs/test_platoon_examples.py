"""The examples under the original's names: the LSTM in all its forms, and the batched sum over the data channel."""

import json
import os
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
def launcher(run_command):
    def run(experiment, *words):
        command = sys.executable, "-c", LAUNCHER, experiment, "-D", "cpu", "cpu", *words
        return run_command(*command, timeout=TIMEOUT_S).require().stdout

    return run


@needs_theano
@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.slow
@pytest.mark.rare
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
    platoon("launch", "-n", 2, LSTM / "lstm.py", "--sync", *words.split(), "new.json").require()
    old, new = (json.loads((tmp_path / name).read_text()) for name in ("old.json", "new.json"))
    assert old["valid_error"] <= 0.75 * CHANCE
    for key in ("valid_error", "test_error", "mini_batches"):
        assert old[key] == new[key], key
    assert old["validations"] == 3
    assert new["workers"] == 2


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
