"""The scripts of examples/zoo, with their smallest networks, on two workers; see `test_benchmarks.py` for zoo.py."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from needing import marks_of, needs_theano

pytestmark = pytest.mark.slow
ZOO = Path(__file__).parents[2] / "examples" / "zoo"
needs_keras_3 = pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND") not in ("torch", "jax") or not find_spec("keras"),
    reason="needs Keras 3 on torch or JAX: `make test` runs this in .nox/keras3",
)
LASAGNE = ["--model", "alexnet", "--width", 0.05, "--image", 67]
KERAS = ["--model", "vit", "--width", 0.1, "--image", 32]


@pytest.mark.parametrize(
    ("script", "words", "rule", "parameters"),
    [
        pytest.param("zoo_lasagne.py", LASAGNE, "bsp", 58_364, marks=marks_of(needs_theano)),
        pytest.param("zoo_lasagne.py", LASAGNE, "easgd", 58_364, marks=marks_of(needs_theano)),
        pytest.param("zoo_keras.py", KERAS, "easgd", 220_510, marks=[pytest.mark.keras, needs_keras_3]),
    ],
)
def test_each_moment_of_a_step_is_in_one_part(platoon, tmp_path, script, words, rule, parameters):
    done = platoon(
        "launch", "-n", 2, "--summary", "job.json", "--log-dir", "logs", ZOO / script, *words, "--rule", rule,
        "--data", "digits", "--batch", 4, "--steps", 5, "--summary", "script.json",
    ).require()  # fmt: skip
    result = json.loads((tmp_path / "script.json").read_text())
    assert (result["workers"], result["rule"], result["batch"], result["steps"]) == (2, rule, 4, 5)
    assert result["parameters"] == parameters
    assert set(result["parts_ms"]) == {"load", "compute", "communicate", "wait"}
    assert min(result["parts_ms"].values()) >= 0
    assert min(result["parts_ms"][part] for part in ("load", "compute", "communicate")) > 0
    assert sum(result["parts_ms"].values()) == pytest.approx(result["step_ms"])
    # Of the slowest worker, so at most the rate that the mean of both would give.
    assert 0 < result["images_per_s"] <= 2 * 4 / (result["step_ms"] / 1e3) * (1 + 1e-9)
    assert json.loads((tmp_path / "job.json").read_text())["images_per_s"] == result["images_per_s"]
    assert f"{result['images_per_s']:.1f} images/s" in done.stdout
