"""Loops of JAX on GPUs exchange values in device memory, and say why where they do not.

The scripts are those of `jobs/test_array_loops.py`. Without GPUs the processor is the device, see `processor_cuda`.
"""

import importlib.util
import re
from pathlib import Path

import pytest
from cuda_center_jobs import DEVICES, require_computing
from scripts_here import script_path

pytest.importorskip("jax", reason="needs JAX: `make test` runs this file in .nox/keras3")
import loops_on_device

pytestmark = [pytest.mark.keras, pytest.mark.backend, pytest.mark.timeout(600)]
PACKAGES = [name for name in ("optax", "flax", "equinox") if importlib.util.find_spec(name)]


@pytest.fixture(params=["gpus", "processor"])
def run(run_job, request):
    """Run a script on two workers; return the outcome, and each worker's sums and synchronizations on the device."""
    places = {"environment": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, "devices": DEVICES}
    if request.param == "gpus":
        require_computing("jax")
    else:
        folder = str(request.getfixturevalue("processor_driver"))
        places = {"environment": {"LD_LIBRARY_PATH": folder, "PROCESSOR_NCCL": folder}}

    def start(script, *words, **options):
        options = {"center": "device", **places, **options}
        words = [str(script if isinstance(script, Path) else script_path(script)), *words]
        outcome = run_job(Path(loops_on_device.__file__), args=words, **options)
        found = [re.findall(r"in device memory: (\d+) sums, (\d+) synchron", log) for log in outcome.logs]
        return outcome, [tuple(map(int, each[0])) for each in found]

    return start


@pytest.mark.promise
def test_averaged_gradients_equal_one_process(run):
    outcome, made = run("array_loops_sync", *PACKAGES)
    outcome.require_success()
    assert min(sums for sums, _ in made) > 50, made


@pytest.mark.promise
@pytest.mark.parametrize("case", ["default", "none", "period", "EASGD", "DiLoCo"])
def test_all_workers_have_one_model_after_each_pass(run, case):
    outcome, made = run("array_loops_async", case, *PACKAGES)
    outcome.require_success()
    assert (min(synced for _, synced in made) > 10) == (case != "DiLoCo"), made


@pytest.mark.parametrize(("mode", "error"), [("sync", "WorkerLostError"), ("async", "NonFiniteError")])
def test_errors_within_compiled_steps_are_raised_as_they_are(run, mode, error):
    outcome, made = run("array_loops_errors", mode)
    assert sum(f"raised {error} at" in log for log in outcome.logs) == 1, outcome.logs
    assert any(made[0]), made


LOOP = """
import sys
from platoon_base import connect
import jax, jax.numpy as jnp
from platoon_base.array_loops import average, batches, common, prepare, sync

params = prepare({"w": jnp.ones(1000), "half": jnp.ones(3, jnp.float16)}, mode=sys.argv[2])

@jax.jit
def step(params):
    grads = average(jax.grad(lambda p: sum(((leaf - RANK) ** 2).sum() for leaf in p.values()))(params))
    return sync(jax.tree.map(lambda p, g: (p - 0.1 * g).astype(p.dtype), params, grads))

RANK = connect().global_rank
for _ in batches(20, 2):
    params = step(params)
params = common(params)
everyone = connect().all_gather(jax.device_get(params["w"]))
assert (everyone[0] == everyone[1]).all() and 0 < everyone[0][0] < 1, everyone
"""


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_way_through_host_memory_is_said(run, tmp_path, mode):
    """The center has no kernels for float16; gradients are averaged as float32."""
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    outcome, made = run(script, mode)
    outcome.require_success()
    assert made == [(5, 0)] * 2 if mode == "sync" else made == [(0, 0)] * 2
    assert any("pass through host memory" in log for log in outcome.logs) == (mode == "async"), outcome.logs[0]


NO_NCCL = """
from platoon_base.worker.advanced import Advanced
Advanced.device_all_reduce = lambda self, ordinal: None
"""
ELSEWHERE = """
import jax
from platoon_base.array_loops import on_device
on_device.Device.takes = lambda leaves: not leaves  # on this device
"""


@pytest.mark.parametrize(
    ("before", "mode", "why"),
    [(NO_NCCL, "sync", "workers share a device"), (ELSEWHERE, "async", "on another device, or on several")],
)
def test_values_that_cannot_stay_go_through_host_memory(run, tmp_path, before, mode, why):
    script = tmp_path / "loop.py"
    script.write_text(before + LOOP)
    outcome, made = run(script, mode)
    outcome.require_success()
    assert made == [(0, 0)] * 2
    assert all(log.count("pass through host memory") == 1 and why in log for log in outcome.logs), outcome.logs[0]


def test_workers_that_see_several_gpus_go_through_host_memory(run_job, processor_driver, tmp_path):
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    places = {"LD_LIBRARY_PATH": str(processor_driver), "PROCESSOR_NCCL": str(processor_driver)}
    places["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    outcome = run_job(Path(loops_on_device.__file__), args=[str(script), "sync"], environment=places, center="device")
    outcome.require_success()
    assert all("a worker needs one CUDA device" in log for log in outcome.logs), outcome.logs[0]
