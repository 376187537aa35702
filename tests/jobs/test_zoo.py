"""The scripts of examples/zoo, with their smallest networks, on two workers."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from needing import needs_theano

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
ZOO = ROOT / "examples" / "zoo"
PARTS = {"load", "compute", "communicate", "wait"}
needs_keras_3 = pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND") not in ("torch", "jax") or not find_spec("keras"),
    reason="needs Keras 3 on torch or JAX: `make test` runs this in .nox/keras3",
)


def train(platoon, script, *words):
    done = platoon(
        "launch", "-n", 2, "--summary", "job.json", "--log-dir", "logs", ZOO / script, *words,
        "--data", "digits", "--batch", 4, "--steps", 5, "--summary", "script.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def require_measured(folder, output, rule, parameters):
    result = json.loads((folder / "script.json").read_text())
    assert (result["workers"], result["rule"], result["batch"], result["steps"]) == (2, rule, 4, 5)
    assert result["parameters"] == parameters
    assert set(result["parts_ms"]) == PARTS
    assert min(result["parts_ms"].values()) >= 0
    assert min(result["parts_ms"][part] for part in ("load", "compute", "communicate")) > 0
    assert sum(result["parts_ms"].values()) == pytest.approx(result["step_ms"]), "each moment is in one part"
    # Of the slowest worker, so at most the rate that the mean of both would give.
    assert 0 < result["images_per_s"] <= 2 * 4 / (result["step_ms"] / 1e3) * (1 + 1e-9)
    assert json.loads((folder / "job.json").read_text())["images_per_s"] == result["images_per_s"]
    assert f"{result['images_per_s']:.1f} images/s" in output


@needs_theano
@pytest.mark.parametrize("rule", ["bsp", "easgd"])
def test_lasagne(platoon, tmp_path, rule):
    words = ["--model", "alexnet", "--width", 0.05, "--image", 67, "--rule", rule]
    require_measured(tmp_path, train(platoon, "zoo_lasagne.py", *words), rule, 58_364)


@pytest.mark.keras
@needs_keras_3
def test_keras(platoon, tmp_path):
    output = train(platoon, "zoo_keras.py", "--model", "vit", "--width", 0.1, "--image", 32, "--rule", "easgd")
    require_measured(tmp_path, output, "easgd", 220_510)


def benchmark(folder, *words):
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "zoo.py", *words, "--out", folder],
        cwd=folder, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip


@needs_theano
@pytest.mark.rare
def test_the_benchmark_writes_rates_and_efficiency(tmp_path):
    words = ["--quick", "--devices", "cpu", "cpu", "--models", "alexnet", "--rules", "bsp", "--data", "digits"]
    done = benchmark(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "zoo-lasagne-cpu.json").read_text())
    single, both = written["results"]
    assert (single["workers"], single["devices"], single["efficiency"]) == (1, ["cpu"], 1)
    assert (both["workers"], both["devices"]) == (2, ["cpu", "cpu"])
    assert both["efficiency"] == both["images_per_s"] / (2 * single["images_per_s"])
    assert set(both["parts_ms"]) == PARTS
    for result in written["results"]:
        assert f"alexnet, bsp, {result['workers']} workers: {result['images_per_s']:.1f} images/s" in done.stdout


def test_the_benchmark_refuses_a_network_that_the_framework_has_not(tmp_path):
    done = benchmark(tmp_path, "--framework", "torch", "--models", "alexnet")
    assert done.returncode == 1
    assert "got --models alexnet with --framework torch: it has resnet50, vgg16, vit" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_job_that_fails_is_reported_and_the_benchmark_fails(tmp_path):
    words = ["--quick", "--devices", "cpu", "--models", "alexnet", "--rules", "bsp", "--data", "fashion"]
    done = benchmark(tmp_path, *words, "--image", "8")
    assert done.returncode == 1
    assert "FAILED: alexnet, bsp, 1 workers: status 1" in done.stdout
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.keras
@pytest.mark.skipif(os.environ.get("KERAS_BACKEND") != "torch", reason="DistributedDataParallel is torch's")
def test_the_benchmark_compares_with_ddp(tmp_path):
    words = ["--framework", "torch", "--quick", "--devices", "cpu", "cpu", "--models", "vit", "--rules", "ddp"]
    done = benchmark(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "zoo-torch-cpu.json").read_text())["results"]
    assert [(row["rule"], row["workers"]) for row in results] == [("ddp", 1), ("ddp", 2)]
    assert results[1]["parts_ms"]["communicate"] == 0, "DistributedDataParallel has no clock"
    assert all(row["images_per_s"] > 0 for row in results)


def test_ddp_is_refused_where_it_is_not(tmp_path):
    done = benchmark(tmp_path, "--framework", "jax", "--rules", "ddp")
    assert done.returncode == 1
    assert "got --rules ddp with --framework jax" in done.stderr
