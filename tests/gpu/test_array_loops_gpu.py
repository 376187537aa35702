"""Loops of JAX on GPUs say that what workers exchange passes through host memory."""

import pytest

pytestmark = [pytest.mark.backend, pytest.mark.timeout(600)]

LOOP = """
from platoon_base import connect
import jax, jax.numpy as jnp, optax
from platoon_base.array_loops import prepare

params, optimizer = prepare({{"w": jnp.ones(1000)}}, optax.sgd(0.1), mode={mode!r})
state = optimizer.init(params)
for _ in range(3):
    grads = jax.grad(lambda p: ((p["w"] - connect().global_rank) ** 2).sum())(params)
    updates, state = optimizer.update(grads, state, params)
    params = optax.apply_updates(params, updates)
"""


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_way_through_host_memory_is_said(run_job, mode):
    jax = pytest.importorskip("jax")
    pytest.importorskip("optax")
    devices = ["cuda0", "cuda1"] if jax.default_backend() != "cpu" and len(jax.devices()) > 1 else None
    outcome = run_job(LOOP.format(mode=mode), 2, devices=devices)
    outcome.require_success()
    assert any("pass through host memory" in log for log in outcome.logs) == (devices is not None)
