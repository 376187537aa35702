"""The benchmarks that others are meant to run, in a small form."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from needing import needs_theano

from platoon_base import compat

compat.apply()

pytestmark = pytest.mark.slow

# One back end is enough for a script, and half a minute.
needs_torch = pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND") != "torch", reason="needs Keras on torch: `make test` runs this in .venv-keras3"
)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def lstm(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS / "scripts"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import lstm

    return lstm


@needs_theano
@pytest.mark.timeout(400)  # seven starts, the first of which may compile
@pytest.mark.slow
def test_lstm_measures_all_kinds_and_keeps_its_results(tmp_path):
    done = subprocess.run(
        [
            sys.executable, BENCHMARKS / "lstm.py", "--devices", "cpu", "cpu", "--units", "8", "--vocabulary", "20",
            "--seconds", "0.3", "--repeats", "2", "--out", tmp_path,
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=390, check=False,
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


@pytest.mark.keras
@needs_torch
@pytest.mark.timeout(200)
def test_keras_fit_measures_all_ways_and_keeps_its_results(tmp_path):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "keras_fit.py", "--quick", "--out", tmp_path],
        cwd=tmp_path, capture_output=True, text=True, timeout=190, check=False,
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
    assert len(written["goals"]) == 2
