import gc
import os
import signal
import sys

import jax
import jax.numpy as jnp

from platoon_base import ASGD, connect
from platoon_base.array_loops import average, common, prepare, sync
from platoon_base.array_loops.groups import Group
from platoon_base.errors import ConfigurationError, LayoutMismatchError

RANK = connect().global_rank
SIZE = 100_003


def prepared(value, mode="async"):
    rule = {"strategy": ASGD(), "sync_every": 1} if mode == "async" else {}
    return prepare({"w": jnp.full(SIZE, value)}, mode=mode, **rule)


def added(params, value=0.1):
    return {"w": params["w"] + value}


def alive():
    gc.collect()
    return sum(array.size // SIZE for array in jax.live_arrays())


def an_error_is_raised():
    params = prepared(1.0)
    for step in range(12):
        params = sync(added(params, jnp.nan if step == 5 and RANK else 0.1))


def an_error_that_the_last_call_finds_is_raised():
    params = prepared(1.0)
    for step in range(4):
        params = sync(added(params, jnp.nan if step == 2 and RANK else 0.1))


def a_worker_is_killed():
    params = prepared(1.0, "sync")
    for step in range(15):
        if step == 5 and RANK:
            os.kill(os.getpid(), signal.SIGKILL)
        params = jax.block_until_ready(added(params, average({"w": params["w"] * (RANK + 1)})["w"]))


def one_step_and_common_values():
    params = common(sync(added(prepared(10.0 * 2**RANK), 1.0)))
    assert params["w"][0] in (11, 21, 41), params  # of the worker that made the center


def memory():
    for mode, most in (("async", 1), ("sync", 2)):
        params, grads = prepared(1.0, mode), None
        for _ in range(4):
            if mode == "sync":
                grads = average({"w": params["w"] * 0.1 * (RANK + 1)})
                params = added(params, -0.01 * grads["w"])
            else:
                params = sync(added(params))
            jax.block_until_ready(params)
        assert alive() <= most, (mode, alive())
        del params, grads
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, Group)]  # of the training that has ended


def refused(change):
    params = prepared(1.0)
    for _ in range(3):
        params = sync(added(params))
    change(params)
    try:
        for _ in range(3):
            params = jax.block_until_ready(sync(params))
    except LayoutMismatchError:
        print("refused")


def another_dtype():
    refused(lambda params: sync({"w": params["w"].astype(jnp.float16)}))


def several_models():
    refused(lambda params: jax.vmap(sync)({"w": jnp.stack([params["w"], params["w"]])}))


def reads_the_center():
    params = prepared(1.0)
    for _ in range(3):
        params = sync(added(params))
    try:
        connect().copy_to_local()
    except ConfigurationError:
        print("refused")


globals()[sys.argv[2]]()
print("ended")
