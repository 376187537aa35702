"""What the scripts of examples/zoo compute of the workers' phases, against numbers by hand."""

from pathlib import Path

import pytest

ZOO = Path(__file__).parents[2] / "examples" / "zoo"
NOTHING = dict.fromkeys(("compute", "sync", "collective", "waiting", "loading", "validation"), 0.0)


@pytest.fixture
def combine(monkeypatch):
    monkeypatch.syspath_prepend(str(ZOO))
    import zoo_measure

    return zoo_measure.combine


def test_the_shortest_time_in_collective_calls_is_the_exchange_and_the_rest_is_waiting(combine):
    slow = {**NOTHING, "compute": 6.0, "collective": 1.0, "loading": 2.0, "waiting": 0.5, "sync": 0.5}
    fast = {**NOTHING, "compute": 3.0, "collective": 3.0, "loading": 1.0, "waiting": 1.5, "sync": 0.5}
    found = combine([slow, fast], batch=16, steps=10)
    assert found["workers"] == 2
    assert found["images_per_s"] == pytest.approx(2 * 160 / 10.0), "of the slowest worker, which took 10 s"
    assert found["parts_ms"] == pytest.approx({"load": 150, "compute": 450, "communicate": 150, "wait": 200})
    assert found["step_ms"] == pytest.approx(950)


def test_one_worker_waits_for_nobody(combine):
    found = combine([{**NOTHING, "compute": 1.5, "loading": 0.5}], batch=4, steps=100)
    assert found["images_per_s"] == pytest.approx(200)
    assert found["parts_ms"] == pytest.approx({"load": 5, "compute": 15, "communicate": 0, "wait": 0})
