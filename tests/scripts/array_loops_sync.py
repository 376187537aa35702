"""Loops of JAX and NumPy with averaged gradients end as one process with the batches of all workers, to 1e-6."""

from job_preamble import ConfigurationError, connect, np, raises, sys
import collections
import jax
import jax.numpy as jnp
from platoon_base.array_loops import average, batches, common, loops, prepare

jax.config.update("jax_enable_x64", True)
WORKERS, RANK = connect().global_size, connect().global_rank
generator = np.random.default_rng(0)
X = generator.normal(size=(131, 6))
Y = np.sin(X.sum(1, keepdims=True))


def alone(*objects):
    return objects[0] if len(objects) == 1 else objects


def ready(*objects):
    return prepare(*objects, mode="sync")


def rows_of_one(length, size=8):
    return [np.arange(start, min(start + size * WORKERS, length)) for start in range(0, length, size * WORKERS)]


def compare(what, train, length=len(X)):
    """Train prepared objects on all workers, and others with larger batches; compare the parameters.

    With 128 rows all batches have one size, so there are half as many programs to compile.
    """
    found = train(ready, lambda: batches(length, 8, shuffle=False), RANK, average, common)
    right = train(alone, lambda: rows_of_one(length), 0, lambda grads, weight=None: grads, alone)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(right) if hasattr(leaf, "dtype")]
    assert len(leaves) > 1 or what == "scalars"
    for value, wanted in zip([leaf for leaf in jax.tree.leaves(found) if hasattr(leaf, "dtype")], leaves):
        np.testing.assert_allclose(np.asarray(value), wanted, 1e-6, 1e-9, err_msg=what)


def first(seed):
    keys = jax.random.split(jax.random.key(seed), 2)
    return {
        "hidden": {"w": jax.random.normal(keys[0], (6, 8)), "b": jnp.zeros(8)},
        "out": jax.random.normal(keys[1], (8, 1)),
    }


def loss_of(params, x, y):
    hidden = jnp.tanh(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return jnp.mean((hidden @ params["out"] - y) ** 2)


def by_hand(ready, rows, seed, average, common):
    """JAX alone, within jit with donated arguments."""
    params = ready(first(seed))

    def step(params, x, y):
        grads = average(jax.grad(loss_of)(params, x, y), len(x))
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    step = jax.jit(step, donate_argnums=0)
    for _ in range(2):
        for row in rows():
            params = step(params, X[row], Y[row])
    return common(params)


def prefetched(ready, rows, seed, average, common):
    """Batches are read before the steps that use them, and validated within a pass."""
    params, epochs = ready(first(seed)), 2

    @jax.jit
    def step(params, x, y):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, average(jax.grad(loss_of)(params, x, y)))

    for _ in range(epochs):
        ahead = collections.deque()
        for number, row in enumerate([*rows()] if ready is alone else rows()):
            ahead.append(row)
            if len(ahead) > 2:
                row = ahead.popleft()
                params = step(params, X[row], Y[row])
            if number == 5:
                list(rows())
        for row in ahead:
            params = step(params, X[row], Y[row])
    if ready is not alone and WORKERS > 1:
        assert loops.current().epoch == epochs, loops.current().epoch
    return common(params)


def masked(ready, rows, seed, average, common):
    """Batches of one size with masks, and two models in turn."""
    params, scales = ready(first(seed), {"s": jnp.full(3, 1.0 + seed)})

    @jax.jit
    def step(params, scales, x, y, mask):
        def loss(params):
            hidden = jnp.tanh(x @ params["hidden"]["w"] + params["hidden"]["b"])
            return jnp.sum(mask * (hidden @ params["out"] - y)[:, 0] ** 2) / mask.sum()

        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, average(jax.grad(loss)(params), mask.sum()))
        slope = jax.grad(lambda s: jnp.sum(mask * x[:, 0]) / mask.sum() * jnp.sum(s["s"] ** 2))(scales)
        return params, jax.tree.map(lambda s, g: s - 0.1 * g, scales, average(slope, mask.sum()))

    for row in rows():
        size = 8 if ready is not alone else 8 * WORKERS
        whole = np.resize(row, size)
        params, scales = step(params, scales, X[whole], Y[whole], jnp.arange(size) < len(row))
    return common(params, scales)


def numpy_alone(ready, rows, seed, average, common):
    generator = np.random.default_rng(seed)
    params = ready({"w": generator.normal(size=(6, 1)), "b": 0.0, "c": generator.normal(size=1) + 1j})
    for _ in range(2):
        for row in rows():
            wrong = X[row] @ params["w"] + params["b"] + params["c"].real - Y[row]
            grads = {"w": X[row].T @ wrong / len(row), "b": float(wrong.mean()), "c": wrong.mean(0) * (1 + 2j)}
            grads = average(grads)
            for name in grads:
                params[name] -= 0.1 * grads[name]
    return common(params)


compare("by hand", by_hand)
compare("NumPy", numpy_alone)
compare("prefetched", prefetched)
compare("masked", masked)
if "optax" in sys.argv:
    import optax

    def optax_loop(make, scans=False):
        def train(ready, rows, seed, average, common):
            params, optimizer = ready(first(seed), make())
            # Some states have parameters, which are donated too.
            state = jax.tree.map(jnp.copy, optimizer.init(params))

            def step(carry, batch):
                params, state = carry
                loss, grads = jax.value_and_grad(loss_of)(params, *batch)
                updates, state = optimizer.update(grads, state, params)
                return (optax.apply_updates(params, updates), state), loss

            compiled = jax.jit(step, donate_argnums=0)
            for _ in range(2):
                if scans:
                    own = [row for row in rows() if len(row) == len(rows()[0])] if ready is alone else list(rows())[:-1]
                    batch = (jnp.stack([X[row] for row in own]), jnp.stack([Y[row] for row in own]))
                    (params, state), _ = jax.jit(lambda carry, batch: jax.lax.scan(step, carry, batch))(
                        (params, state), batch
                    )
                else:
                    for row in rows():
                        (params, state), _ = compiled((params, state), (X[row], Y[row]))
            return common(params)

        return train

    clipped = lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.adam(optax.cosine_decay_schedule(0.05, 20)))
    compare("adam", optax_loop(clipped))
    compare("scan", optax_loop(clipped, True))
    compare("no chain", optax_loop(lambda: optax.scale(-0.05)), 128)
    compare("accumulation", optax_loop(lambda: optax.MultiSteps(optax.adam(0.05), 2)))
    several = prepare(optax.MultiSteps(optax.sgd(0.1), 2), mode="sync")
    assert not several.has_updated(several.init({"w": jnp.ones(2)}))
    weights = lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)
    compare(
        "masked",
        optax_loop(lambda: optax.chain(optax.sgd(0.1, 0.9), optax.masked(optax.add_decayed_weights(0.1), weights))),
        128,
    )
    anchored = [optax.contrib.cocob(), optax.contrib.madgrad(0.05), optax.contrib.schedule_free_sgd(0.05)]
    anchored += [optax.contrib.mechanize(optax.sgd(0.1)), optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1))]
    for made in anchored if WORKERS > 1 else anchored[:1]:
        compare("parameters in the state", optax_loop(lambda made=made: made), 128)
    compare("injected", optax_loop(lambda: optax.inject_hyperparams(optax.adamw)(0.05)), 128)
    plateau = lambda: optax.contrib.reduce_on_plateau(factor=0.5, patience=1, accumulation_size=2)
    by_losses = [optax.chain(optax.adam(0.1), plateau()), optax.polyak_sgd(0.1)]

    def decides(made):
        def train(ready, rows, seed, average, common):
            params, optimizer = ready(first(seed), made)
            state = optimizer.init(params)

            @jax.jit
            def step(params, state, x, y):
                loss, grads = jax.value_and_grad(loss_of)(params, x, y)
                updates, state = optimizer.update(grads, state, params, value=loss)
                return optax.apply_updates(params, updates), state

            for row in rows():
                params, state = step(params, state, X[row], Y[row])
            return common(params)

        return train

    for made in by_losses:
        compare("decides by the loss", decides(optax.with_extra_args_support(made)))
    if WORKERS > 1:
        searching = prepare(optax.lbfgs(), mode="sync")
        with raises(ConfigurationError, "linesearch=None"):
            searching.update({"w": X[0]}, None, {"w": X[0]}, value=0.0, grad=X[0], value_fn=jnp.sum)

    def ensemble(ready, rows, seed, average, common):
        """Several models by vmap, with the update within it."""
        first_of = jax.vmap(lambda key: {"w": jax.random.normal(key, (6, 1)), "b": jnp.zeros(1)})
        params, optimizer = ready(first_of(jax.random.split(jax.random.key(seed), 3)), optax.adam(0.05))
        state = jax.vmap(optimizer.init)(params)

        @jax.jit
        def step(params, state, x, y):
            def one(params, state):
                grads = jax.grad(lambda p: jnp.mean((x @ p["w"] + p["b"] - y) ** 2))(params)
                updates, state = optimizer.update(grads, state, params)
                return optax.apply_updates(params, updates), state

            return jax.vmap(one)(params, state)

        for row in rows():
            params, state = step(params, state, X[row], Y[row])
        return common(params)

    compare("ensemble", ensemble, 128)
if "flax" in sys.argv:
    import optax
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs):
            kinds = {"rngs": rngs, "dtype": jnp.float64, "param_dtype": jnp.float64}
            self.hidden, self.out = nnx.Linear(6, 8, **kinds), nnx.Linear(8, 1, **kinds)
            self.layers = nnx.List([nnx.Linear(8, 8, **kinds)])

        def __call__(self, x):
            return self.out(self.layers[0](nnx.tanh(self.hidden(x))))

    def nnx_loop(ready, rows, seed, average, common):
        model = Model(nnx.Rngs(seed))
        given = nnx.Optimizer(model, optax.adam(0.05), wrt=nnx.Param)
        prepared, optimizer = ready(model, given)
        assert prepared is model and optimizer is given

        @nnx.jit
        def step(model, optimizer, x, y):
            loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
            optimizer.update(model, grads)
            return loss

        for _ in range(2):
            for row in rows():
                step(model, optimizer, X[row], Y[row])
        return nnx.state(common(model), nnx.Param)

    compare("NNX", nnx_loop)
if "equinox" in sys.argv:
    import equinox as eqx
    import optax

    def equinox_loop(ready, rows, seed, average, common):
        model = eqx.nn.MLP(6, 1, 8, 1, key=jax.random.key(seed), dtype=jnp.float64)
        model, optimizer = ready(model, optax.adam(0.05))
        state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

        @eqx.filter_jit
        def step(model, state, x, y):
            loss = lambda model: jnp.mean((jax.vmap(model)(x) - y) ** 2)
            grads = eqx.filter_grad(loss)(model)
            updates, state = optimizer.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
            return eqx.apply_updates(model, updates), state

        for _ in range(2):
            for row in rows():
                model, state = step(model, state, X[row], Y[row])
        return common(model)

    compare("Equinox", equinox_loop)
connect().close()
