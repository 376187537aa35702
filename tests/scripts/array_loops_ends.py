"""The error of the last step reaches the script at the end of a training, however it ends."""

from job_preamble import NonFiniteError, connect, sys
import jax
import jax.numpy as jnp
from platoon_base import ASGD
from platoon_base.array_loops import common, prepare, sync

worker = connect()


KINDS = {"strategy": ASGD(), "sync_every": 1}


def trained():
    """Train asynchronously; the last step of one worker gives a NaN."""
    params = prepare({"w": jnp.ones(300)}, **KINDS)
    step = jax.jit(lambda params, change: sync({"w": params["w"] + change}))
    for number in range(5):
        params = step(params, jnp.nan if number == 4 and worker.global_rank else 1.0)
    return params


def raised(by, end):
    try:
        end()
    except NonFiniteError:
        print("raised by", by)
        if by == "close":
            raise


params = trained()
if worker.global_rank:
    raised("common", lambda: common(params))
trained()
raised("prepare", lambda: prepare({"w": jnp.ones(3)}, **KINDS))
trained()
if sys.argv[2] == "close":
    raised("close", worker.close)
