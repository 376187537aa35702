"""Milliseconds a step of a loop of JAX: its argument is "plain", "sync" or "async".

platoon launch -D cuda0 cuda1 benchmarks/array_loop.py sync
"""

import sys
import time

import jax
import jax.numpy as jnp
import optax

from platoon_base.array_loops import common, prepare

MODE = sys.argv[1]
WIDTH, LAYERS, ROWS, STEPS = 2048, 6, 256, 100
keys = jax.random.split(jax.random.key(0), LAYERS)
params = [{"w": jax.random.normal(key, (WIDTH, WIDTH)) * WIDTH**-0.5, "b": jnp.zeros(WIDTH)} for key in keys]
optimizer = optax.adam(1e-4)
if MODE != "plain":
    params, optimizer = prepare(params, optimizer, mode=MODE)
state = optimizer.init(params)
x = jax.random.normal(jax.random.key(1), (ROWS, WIDTH))
y = jax.nn.relu(jax.random.normal(jax.random.key(2), (ROWS, WIDTH)))


def loss_of(params, x):
    for layer in params:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return ((x - y) ** 2).mean()


@jax.jit
def step(params, state):
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


def timed(name, work, count):
    began = time.perf_counter()
    jax.block_until_ready(work())
    print(f"{MODE} {name}: {1e3 * (time.perf_counter() - began) / count:.2f} ms", flush=True)


def epoch():
    global params, state
    for _ in range(STEPS):
        params, state, loss = step(params, state)
    return params, loss


for number in range(4):
    timed(f"epoch {number}, a step", epoch, STEPS)
for number in range(2 * (MODE != "plain")):  # The first one compiles.
    timed(f"common {number}", lambda: common(params), 1)
