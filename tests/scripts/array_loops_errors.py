"""What fails within a compiled step is raised as the error that it is, at the next batch."""

from job_preamble import ConfigurationError, NonFiniteError, WorkerLostError, connect, sys
import jax
import jax.numpy as jnp
from platoon_base.array_loops import average, batches, common, prepare, sync

worker, case = connect(), sys.argv[2]
params = prepare({"w": jnp.ones(3)}, mode="async" if case == "async" else "sync")


@jax.jit
def step(params, weight):
    return sync(jax.tree.map(lambda p, g: p - g, params, average({"w": 0.1 * params["w"]}, weight)))


steps, weight = 0, 2.0
try:
    for _ in range(2):
        for _ in batches(80, 2):
            steps += 1
            if steps == 10 and case == "async" and worker.global_rank:
                params = {"w": params["w"] * jnp.nan}
            if worker.global_rank and case in ("negative weight", "weight of nan"):
                weight = 2.0 if steps != 10 else -1.0 if case == "negative weight" else jnp.nan
            params = step(params, weight)
            assert case == "async" or jnp.isfinite(params["w"]).all(), (steps, params)
            if steps == 10 and case == "sync" and worker.global_rank:
                worker.close()
                sys.exit()
        params = common(params)
except (ConfigurationError, NonFiniteError, WorkerLostError) as error:
    print("raised", type(error).__name__, "at", steps, error)
    assert 10 <= steps < 60
