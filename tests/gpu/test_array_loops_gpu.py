"""Loops of JAX on GPUs exchange values in device memory, and say why where they do not.

The scripts are those of `jobs/test_prepare.py`. Without GPUs the processor is the device, see `processor_cuda`.
"""

import importlib.util
import re
from pathlib import Path

import pytest
from cuda_center_jobs import DEVICES, require_computing
from loop_cases import ERRORS_WITHIN_STEPS
from scripts_here import script_path

from platoon_base.checkpoints.files import CheckpointFolder
from platoon_base.checkpoints.writer import Saving

pytest.importorskip("jax", reason="needs JAX: `make test` runs this file in .nox/keras3")
import loops_on_device

pytestmark = [pytest.mark.keras, pytest.mark.loops, pytest.mark.timeout(600)]
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
        return outcome, [tuple(map(int, each[0])) if each else (0, 0) for each in found]

    return start


@pytest.mark.promise
def test_averaged_gradients_equal_one_process(run):
    outcome, made = run("array_loops_sync", *PACKAGES)
    outcome.require_success()
    assert min(sums for sums, _ in made) > 50, made


@pytest.mark.promise
@pytest.mark.parametrize(
    ("case", "packages"),
    [("default", PACKAGES), ("none", ["optax"]), ("period", ["flax"]), ("EASGD", ["optax"]), ("DiLoCo", [])],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_all_workers_have_one_model_after_each_pass(run, case, packages):
    """`jobs/test_prepare.py` has each case with each package."""
    outcome, made = run("array_loops_async", case, *(name for name in PACKAGES if name in packages))
    outcome.require_success()
    assert (min(synced for _, synced in made) > 10) == (case != "DiLoCo"), made


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_loaders_metrics_and_mistakes(run, mode):
    """The last step is one of a training that has ended, whose error comes before metrics are gathered."""
    outcome, _ = run("array_loops_gathered", mode)
    outcome.require_success()


@pytest.mark.parametrize(("case", "error"), ERRORS_WITHIN_STEPS)
def test_errors_within_compiled_steps_are_raised_as_they_are(run, case, error):
    outcome, made = run("array_loops_errors", case)
    assert sum(f"raised {error} at" in log for log in outcome.logs) == 1, outcome.logs
    assert any(made[0]), made


@pytest.mark.parametrize("end", ["close", "exit"])
def test_an_error_of_the_last_step_is_raised_however_a_training_ends(run, end):
    outcome, _ = run("array_loops_ends", end)
    assert outcome.result.status
    assert [outcome.logs[1].count(f"raised by {by}") for by in ("common", "prepare", "close")] == [1, 1, end == "close"]
    assert end == "close" or "ERROR platoon_base.array_loops.loops: NonFiniteError" in outcome.logs[1]


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("an_error_is_raised", "NonFiniteError"),
        ("an_error_that_the_last_call_finds_is_raised", "NonFiniteError"),
        ("a_worker_is_killed", "WorkerLostError"),
    ],
)
def test_errors_outside_of_compiled_steps_fail_the_worker(run, case, error):
    outcome, made = run("array_loops_eager", case)
    assert outcome.result.status
    assert any(error in log for log in outcome.logs), outcome.logs
    if case == "a_worker_is_killed":  # The others print their counts without a wait for their calls.
        assert any(map(any, made)), made


@pytest.mark.parametrize(("case", "workers"), [("one_step_and_common_values", 3), ("memory", 2)])
def test_calls_outside_of_compiled_steps(run, case, workers):
    run("array_loops_eager", case, workers=workers)[0].require_success()


@pytest.mark.parametrize("case", ["another_dtype", "several_models", "reads_the_center"])
def test_what_a_center_on_the_device_cannot_do_is_refused(run, case):
    outcome, _ = run("array_loops_eager", case)
    outcome.require_success()
    assert all("refused" in log for log in outcome.logs)


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
if sys.argv[2] == "sync":  # outside of programs
    uneven = average({"z": jnp.full(3, RANK * (1 + 2j))}, RANK + 1)
    assert jnp.allclose(uneven["z"], (1 + 2j) * 2 / 3), uneven
    masked = average({"w": jnp.full(3, jnp.nan if RANK else 1.0)}, 1 - RANK)
    assert (masked["w"] == 1).all(), masked
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
    assert made == [(7, 0)] * 2 if mode == "sync" else made == [(0, 0)] * 2
    assert any("pass through host memory" in log for log in outcome.logs) == (mode == "async"), outcome.logs[0]


ELSEWHERE = """
import jax
from platoon_base.array_loops import on_device
on_device.Device.takes = lambda leaves: not leaves  # on this device
"""


def test_values_that_cannot_stay_go_through_host_memory(run, tmp_path):
    script = tmp_path / "loop.py"
    script.write_text(ELSEWHERE + LOOP)
    outcome, made = run(script, "async")
    outcome.require_success()
    assert made == [(0, 0)] * 2
    why = "on another device, or on several"
    assert all(log.count("pass through host memory") == 1 and why in log for log in outcome.logs), outcome.logs[0]


def test_workers_that_see_several_gpus_go_through_host_memory(run_job, processor_driver, tmp_path):
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    places = {"LD_LIBRARY_PATH": str(processor_driver), "PROCESSOR_NCCL": str(processor_driver)}
    places["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    outcome = run_job(Path(loops_on_device.__file__), args=[str(script), "sync"], environment=places, center="device")
    outcome.require_success()
    assert all("a worker needs one CUDA device" in log for log in outcome.logs), outcome.logs[0]


COUNTED = """
import os, signal, sys
import jax, jax.numpy as jnp
from platoon_base import ASGD, connect
from platoon_base.array_loops import common, prepare, sync

worker, first, steps = connect(), float(sys.argv[2]), int(sys.argv[3])
params = prepare({"w": jnp.full(1000, 5.0)}, strategy=ASGD(), sync_every=1)
step = jax.jit(lambda params: sync({"w": params["w"] + 1}))
for number in range(steps):
    params = step(params)
    if len(sys.argv) > 4 and number == steps // 2 and worker.global_rank:
        jax.block_until_ready(params)
        os.kill(os.getpid(), signal.SIGKILL)
params = common(params)
value = float(params["w"][0])
assert (params["w"] == value).all()
worker.report({f"value {worker.global_rank}": value})
# The steps before the center are those of the worker that made it.
assert first + steps <= value <= first + 2 * steps, value
"""


def test_a_loop_goes_on_without_a_killed_worker_and_from_a_checkpoint(run, tmp_path):
    """Each step adds 1, so the center counts the steps of all."""
    script, folder = tmp_path / "loop.py", CheckpointFolder(tmp_path / "kept")
    script.write_text(COUNTED)
    outcome, made = run(script, "5", "20", "killed", saving=Saving(folder, 1000.0))
    value = outcome.reported["value 0"]
    assert made[0][1] > 15, (made, outcome.logs)
    newest = folder.newest()
    outcome, made = run(script, str(value), "10", resume=newest)
    outcome.require_success()
    assert min(synced for _, synced in made) > 5, made
    folder.close()


TWO_MODELS = """
import jax, jax.numpy as jnp
from platoon_base import ASGD
from platoon_base.array_loops import common, prepare, sync

a, b = prepare({"a": jnp.zeros(100)}, {"b": jnp.zeros(200)}, strategy=ASGD(), sync_every=1)
step = jax.jit(lambda tree: sync(jax.tree.map(lambda leaf: leaf + 1, tree)))
a = step(step(a))  # on the device, as there is no other model yet
b = step(step(b))
for _ in range(4):
    a, b = step(a), step(b)
a, b = common(a, b)
# Both are shared from the third step of the first model on, from which the steps of all add up.
assert (a["a"] == 3 + 2 * 3).all() and (b["b"] == 2 + 2 * 4).all(), (a, b)
"""


def test_a_second_model_takes_over_what_the_first_is_then(run, tmp_path):
    script = tmp_path / "loop.py"
    script.write_text(TWO_MODELS)
    outcome, _ = run(script)
    outcome.require_success()
    assert all("several optimizers or models" in log for log in outcome.logs), outcome.logs[0]


SLOW = """
import jax, jax.numpy as jnp
from platoon_base.array_loops import average, batches, loops, prepare

params = prepare({"w": jnp.ones((300, 300))}, mode="sync")

@jax.jit
def step(params):
    return average({"w": jax.lax.fori_loop(0, 100, lambda i, w: w @ w / 300, params["w"])})

for _ in range(3):
    for _ in batches(4, 2):
        params = step(params)
assert loops.current().epoch == 3, loops.current().epoch
"""


def test_a_pass_waits_for_the_calls_of_its_programs(run, tmp_path):
    """Otherwise a step would count as one of the next pass."""
    script = tmp_path / "loop.py"
    script.write_text(SLOW)
    run(script)[0].require_success()
