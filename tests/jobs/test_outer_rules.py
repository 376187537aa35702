"""Outer-step rules in jobs of real processes: rounds against NumPy, deaths, late joiners, uneven loops, checkpoints."""

import numpy as np
import pytest

from platoon_base.rules import DiLoCo, LocalSGD, SlowMo

pytestmark = pytest.mark.base

SHAPES = [(37, 11), (600_000,), (5,)]


def progress(rank, step, shape, dtype):
    """Return what a worker learns in a step, whichever process computes it."""
    rng = np.random.default_rng([rank, step, shape[0]])
    return (0.1 * rng.standard_normal(shape)).astype(dtype)


LEARN = """
import sys
import numpy as np
from platoon_base import connect
from platoon_base.rules import DiLoCo, LocalSGD, SlowMo

SHAPES = [(37, 11), (600_000,), (5,)]

def progress(rank, step, shape, dtype):
    rng = np.random.default_rng([rank, step, shape[0]])
    return (0.1 * rng.standard_normal(shape)).astype(dtype)
"""


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("rule", ["DiLoCo(0.7, 0.8)", "LocalSGD()", "SlowMo(0.5, 1.2)"])
def test_rounds_follow_the_equations_step_by_step(run_job, tmp_path, rule, workers):
    run_job(
        LEARN
        + f"""
x = [np.ones(shape, dtype) for shape, dtype in zip(SHAPES, ("float32", "float32", "float64"))]
with connect() as worker:
    worker.init_shared_params(x, {rule})
    for step in range(4):
        for array in x:
            array += progress(worker.global_rank, step, array.shape, array.dtype)
        worker.sync_params(part=0.5 if step == 2 else 1.0)
    np.savez(f"{{sys.argv[1]}}/{{worker.global_rank}}.npz", *x)
""",
        workers=workers,
    ).require_success()
    rule = eval(rule, {"DiLoCo": DiLoCo, "LocalSGD": LocalSGD, "SlowMo": SlowMo})
    lr, mu = getattr(rule, "outer_lr", 1.0), getattr(rule, "momentum", 0.0)
    found = [np.load(tmp_path / f"{rank}.npz") for rank in range(workers)]
    for i, shape in enumerate(SHAPES):
        c, m = np.ones(shape), np.zeros(shape)
        alone = 1 + sum(progress(0, step, shape, "float64") for step in range(4))
        for step in range(4):
            r = 0.5 if step == 2 else 1.0
            d = np.mean([progress(rank, step, shape, "float64") for rank in range(workers)], axis=0)
            if isinstance(rule, SlowMo):
                c, m = c + lr * (d + r * mu * m), mu**r * m + d
            else:
                m = mu**r * m + d
                c = c + lr * (d + r * mu * m)
        for values in found:
            np.testing.assert_allclose(values[f"arr_{i}"], c if workers > 1 else alone, rtol=0, atol=1e-5)
            assert values[f"arr_{i}"].tobytes() == found[0][f"arr_{i}"].tobytes()
