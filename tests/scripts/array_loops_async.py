"""Loops of NumPy and JAX that synchronize with a center: one model after each pass, own values while training."""

from job_preamble import ConfigurationError, np, raises, sys, worker
from prepared_cases import RULES, SETTINGS
import jax
import jax.numpy as jnp
from platoon_base.array_loops import batches, common, gather_for_metrics, groups, loops, prepare, sync

generator = np.random.default_rng(0)
X = generator.normal(size=(200, 6)).astype("f")
Y = (X.sum(1, keepdims=True) > 0).astype("f")


def equal(*trees):
    flat = np.concatenate([np.ravel(leaf).astype("d") for leaf in jax.tree.leaves(trees) if hasattr(leaf, "dtype")])
    everyone = worker.all_gather(flat)
    return np.array_equal(everyone[0], everyone[-1])


def first(seed):
    keys = jax.random.split(jax.random.key(seed), 2)
    return {
        "w": jax.random.normal(keys[0], (6, 8)),
        "b": jnp.zeros(8, jnp.bfloat16),
        "out": jax.random.normal(keys[1], (8, 1)),
    }


def loss_of(params, x, y):
    logits = jnp.tanh(x @ params["w"] + params["b"]) @ params["out"]
    return jnp.mean(jnp.logaddexp(0, logits) - y * logits)


def check_rule(case):
    if worker.global_size > 1:
        rule = loops.current().fit.rule
        assert type(rule) is RULES[case], rule
        assert worker.advanced.sharing, "shared"


def by_hand(case):
    """JAX alone: `sync` within jit, and statistics beside the parameters."""
    params = prepare(first(worker.global_rank), **SETTINGS[case])
    statistics = {"mean": jnp.full(3, worker.global_rank, "f"), "count": jnp.int32(worker.global_rank)}
    loader = batches(len(X), 8)

    @jax.jit
    def step(params, x, y):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        return sync(jax.tree.map(lambda p, g: p - 0.3 * g, params, grads)), loss

    for epoch in range(3):
        for number, row in enumerate(loader):
            params, loss = step(params, X[row], Y[row])
            if epoch == 1 and number == 5 and case != "DiLoCo" and worker.global_size > 1:
                assert not equal(params), case
        params, statistics = common(params, statistics)
        assert equal(params, statistics), case
        assert statistics["count"].dtype == jnp.int32
        assert params["b"].dtype == jnp.bfloat16
    assert abs(float(statistics["mean"][0]) - (worker.global_size - 1) / 2) < 1e-6
    check_rule(case)
    assert loss_of(params, X, Y) < 0.69, (case, loss_of(params, X, Y))


def numpy_alone(case):
    """Arrays change in place; numbers are returned."""
    generator = np.random.default_rng(worker.global_rank)
    w = generator.normal(size=(6, 1))
    params = prepare({"w": w, "b": 0.0}, **SETTINGS[case])
    for _ in range(3):
        for row in batches(len(X), 8):
            wrong = 1 / (1 + np.exp(-(X[row] @ params["w"] + params["b"]))) - Y[row]
            params["w"] -= 0.3 * X[row].T @ wrong / len(row)
            params["b"] -= 0.3 * float(wrong.mean())
            params = sync(params)
        params = common(params)
        assert params["w"] is w
        assert equal(params["w"], np.asarray(params["b"])), case
    accuracy = gather_for_metrics((X[worker.shard(len(X))] @ w > 0) == (Y[worker.shard(len(X))] > 0))
    assert len(accuracy) == len(X)
    assert accuracy.mean() > 0.75, (case, accuracy.mean())


def optax_loop(case):
    """Moments are shared; two models with their optimizers, one of which steps twice as often."""
    import optax

    params, other = first(worker.global_rank), {"scale": jnp.ones(3) * (1 + worker.global_rank)}
    params, other, optimizer, second = prepare(params, other, optax.adam(0.05), optax.sgd(0.1), **SETTINGS[case])
    state, second_state = optimizer.init(params), second.init(other)

    @jax.jit
    def step(params, state, x, y):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    @jax.jit
    def step_other(other, second_state):
        grads = jax.tree.map(lambda leaf: 2 * (leaf - 0.5), other)
        updates, second_state = second.update(grads, second_state, other)
        return optax.apply_updates(other, updates), second_state

    loader = batches(len(X), 8)
    for epoch in range(3):
        for number, row in enumerate(loader):
            params, state, loss = step(params, state, X[row], Y[row])
            if number % 2:
                other, second_state = step_other(other, second_state)
        params, other = common(params, other)
        assert equal(params, other), case
    check_rule(case)
    if worker.global_size > 1 and case in ("default", "none"):
        wanted = sorted(f"0/{kind}/{leaf}" for kind in ("mu", "nu") for leaf in ("w", "b", "out"))
        assert sorted(loops.current().center.moments) == wanted, loops.current().center.moments
    assert loss_of(params, X, Y) < 0.6, (case, loss_of(params, X, Y))
    assert abs(other["scale"] - 0.5).max() < 0.4, other
    if worker.global_size > 1:
        with raises(ConfigurationError, "optimizer.update(grads, state, params)"):
            optimizer.update(params, state)
        wide = jax.tree.map(lambda leaf: leaf.astype("f"), params)
        for made, name in (
            (optax.contrib.cocob(), "COCOBState"),
            (optax.chain(optax.clip(1.0), optax.contrib.madgrad(0.1)), "MadgradState"),
            (optax.contrib.mechanize(optax.sgd(0.1)), "MechanicState"),
            (optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1)), "SAMState"),
            (optax.MultiSteps(optax.contrib.schedule_free_sgd(0.1), 2), "ScheduleFreeState"),
        ):
            moved = prepare(made, **SETTINGS[case])
            with raises(ConfigurationError, name):
                jax.jit(moved.update)(wide, moved.init(wide), wide)
            with raises(ConfigurationError, name):
                sync(wide, made.init(wide))
        opaque = optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1), opaque_mode=True)
        groups.require_assignable(opaque.init(params))


def twins(case):
    """Two models with the same shapes, and averages of both; one starts at 0, the other at 10."""
    import optax

    start = lambda value: {"value": jnp.full(3, float(value)), "fixed": None}
    rates = optax.sgd(0.02), optax.sgd(0.02)
    first_model, second_model, *optimizers = prepare(start(0), start(10), *rates, **SETTINGS[case])
    models, averages = [first_model, second_model], [first_model, second_model]
    states = [optimizer.init(model) for optimizer, model in zip(optimizers, models)]
    for _ in range(2):
        for _ in batches(len(X), 8):
            for i, aim in ((1, 11), (0, 1)):
                updates, states[i] = optimizers[i].update(
                    jax.tree.map(lambda p, aim=aim: p - aim, models[i]), states[i], models[i]
                )
                models[i] = optax.apply_updates(models[i], updates)
                averages[i] = optax.incremental_update(models[i], averages[i], 0.5)
        models, averages[0], averages[1] = common(models, *averages)
        assert equal(models, averages), case
    for kind in (models, averages):
        found = [float(model["value"].mean()) for model in kind]
        assert 0 < found[0] < 1.5, found
        assert 10 < found[1] < 11.5, found


def twins_by_hand(case):
    """Two models of equal shapes go through `sync` together."""
    pair = prepare({"w": jnp.zeros(3)}, {"w": jnp.full(3, 10.0)}, **SETTINGS[case])
    if worker.global_size > 1:
        with raises(ConfigurationError, "sync((p, q))"):
            jax.jit(sync)(pair[0])
    step = jax.jit(lambda pair: sync(tuple({"w": p["w"] + 0.02 * (aim - p["w"])} for p, aim in zip(pair, (1, 11)))))
    for _ in batches(len(X), 8):
        pair = step(pair)
    found = [float(model["w"].mean()) for model in common(pair)]
    assert 0 < found[0] < 1.5, found
    assert 10 < found[1] < 11.5, found


def two_optimizers(case):
    """Of one model, whose parameters `common` finds within a larger tree."""
    import optax

    params, *optimizers = prepare(first(worker.global_rank), optax.sgd(0.1), optax.adam(0.01), **SETTINGS[case])
    states = [optimizer.init(params) for optimizer in optimizers]
    for _ in range(2):
        for number, row in enumerate(batches(len(X), 8)):
            grads, i = jax.grad(loss_of)(params, X[row], Y[row]), number % 2
            updates, states[i] = optimizers[i].update(grads, states[i], params)
            params = optax.apply_updates(params, updates)
        state = {"count": 3, "params": params}
        params = common(state)["params"]
        if worker.global_size > 1:
            (group,) = loops.current().groups.values()
            assert np.array_equal(group.arrays[group.names.index("w")], params["w"]), case


def nnx_loop(case):
    import optax
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.hidden, self.norm, self.out = (
                nnx.Linear(6, 8, rngs=rngs),
                nnx.BatchNorm(8, rngs=rngs),
                nnx.Linear(8, 1, rngs=rngs),
            )
            self.dropout = nnx.Dropout(0.1, rngs=rngs)

        def __call__(self, x):
            return self.out(self.dropout(nnx.tanh(self.norm(self.hidden(x)))))

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.05), wrt=nnx.Param)
    model, optimizer = prepare(model, optimizer, **SETTINGS[case])

    @nnx.jit
    def step(model, optimizer, x, y):
        def loss_of(model):
            logits = model(x)
            return jnp.mean(jnp.logaddexp(0, logits) - y * logits)

        loss, grads = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, grads)
        return loss

    for _ in range(3):
        model.train()
        for row in batches(len(X), 8):
            step(model, optimizer, X[row], Y[row])
        assert common(model) is model
        assert equal(nnx.state(model, nnx.Param, nnx.BatchStat)), case
    model.eval()
    assert ((model(X) > 0) == (Y > 0)).mean() > 0.8, case
    masks = worker.gather(float(model.dropout(jnp.ones(1000)).sum()), name="masks")
    model.train()
    masks = worker.gather(str(np.flatnonzero(model.dropout(jnp.ones(100)) == 0)), name="masks")
    assert len(set(masks)) == worker.global_size, masks


for case in sys.argv[2:]:
    if case in SETTINGS:
        by_hand(case)
        numpy_alone(case)
        twins_by_hand(case)
        if "optax" in sys.argv:
            optax_loop(case)
            twins(case)
            two_optimizers(case)
        if "flax" in sys.argv:
            nnx_loop(case)
worker.close()
