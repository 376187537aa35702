"""What fails within a compiled step is raised as the error that it is, at the next batch."""

from job_preamble import NonFiniteError, WorkerLostError, connect, sys
import jax
import jax.numpy as jnp
from platoon_base.array_loops import average, batches, common, prepare, sync

worker, mode = connect(), sys.argv[2]
params = prepare({"w": jnp.ones(3)}, mode=mode)


@jax.jit
def step(params):
    return sync(jax.tree.map(lambda p, g: p - g, params, average({"w": 0.1 * params["w"]})))


steps = 0
try:
    for _ in range(2):
        for _ in batches(80, 2):
            steps += 1
            if steps == 10 and mode == "async" and worker.global_rank:
                params = {"w": params["w"] * jnp.nan}
            params = step(params)
            if steps == 10 and mode == "sync" and worker.global_rank:
                worker.close()
                sys.exit()
        params = common(params)
except (NonFiniteError, WorkerLostError) as error:
    print("raised", type(error).__name__, "at", steps, error)
    assert 10 <= steps < 60
