"""What the launcher learns of a training whose script has no line for it: epoch, steps, goals, loss, validation."""

import math

import pytest
from needing import needs_blocks, require

require("theano")

pytestmark = pytest.mark.theano

LASAGNE = """
    model = Model()
    {updates}
    train = model.compile(updates)
    stop = StopOnPatience(3)
    losses = []
    for epoch in range(2):
        for batch in iterate_minibatches(X, Y, 2, shuffle=True, epoch=epoch):
            losses.append(float(train(*batch)))
        for batch in iterate_minibatches(X, Y, 12, epoch=epoch):
            model.error(*batch)
        value = evaluate(model.error, X, Y, 12)
        stop(value)
    worker.report({{f"loss {{rank}}": losses[-1], f"value {{rank}}": value}})
    finish_training()
"""
BY_RULE = "updates = sync_updates(lasagne.updates.sgd(model.loss, model.params, 0.01), model.params)"
AVERAGED = "updates = lasagne.updates.{rule}(all_reduce_grads(model.loss, model.params), model.params, 0.01)"


def last_of(run, script, **options):
    """Run a script, and return its last snapshot before workers leave, and the reported values."""
    snapshots = []
    outcome = run(script, observer=snapshots.append, **options).require_success()
    return snapshots[-1], outcome.reported


@pytest.mark.parametrize("updates", [BY_RULE, AVERAGED.format(rule="sgd"), AVERAGED.format(rule="adam")])
def test_a_loop_of_lasagne(run_lasagne, updates):
    """Each of two workers has 6 of 12 mini-batches of 2 rows in an epoch."""
    snapshot, reported = last_of(run_lasagne, LASAGNE.format(updates=updates))
    for rank in range(2):
        progress = snapshot.progress[rank]
        assert (progress.epoch, progress.steps, progress.epoch_steps) == (1, 12, 6)
        assert progress.steps_before_epoch == 6
        assert progress.loss == pytest.approx(reported[f"loss {rank}"])
        assert progress.limit in ("patience 0/3", "patience 1/3")
        assert progress.bound or "sync_updates" in updates
    assert reported["val"] == pytest.approx(reported["value 0"]) == pytest.approx(reported["value 1"])


def test_the_adam_step_count_is_no_loss(run_lasagne):
    """A function without outputs has its updates first, among which a scalar may be."""
    script = (
        LASAGNE.format(updates=AVERAGED.format(rule="adam"))
        .replace("model.compile(updates)", "theano.function([model.x, model.y], updates=updates)")
        .replace("float(train(*batch))", "train(*batch) and 0.0")
        .replace("losses[-1]", "0.0")
    )
    snapshot, _ = last_of(run_lasagne, script)
    assert math.isnan(snapshot.progress[0].loss)


BLOCKS = """
    cost, error = network()
    extensions = [ParameterSync({rule}), FinishAfter(after_n_epochs=2), FinishAfter(after_n_batches=100),
                  DistributedMonitoring([cost, error], stream(16, seed=3), prefix="valid", after_epoch=True)]
    loop(cost, shard_stream(stream(32, 8), uneven="drop"), extensions, {step_rule}).run()
"""


def test_an_update_of_what_is_not_shared_is_no_error():
    """Theano prints an error of an optimization and goes on, as it did for each gradient of a scan."""
    import theano

    import platoon_base.theano_ops.sync  # noqa: F401 - registers the optimization

    x = theano.tensor.dscalar("x")
    with theano.configparser.change_flags(on_opt_error="raise"):
        doubled = theano.function([theano.In(x, value=0.0, update=x + 1)], x * 2, mode="FAST_COMPILE")
    assert [float(doubled()) for _ in range(2)] == [0, 2]


@needs_blocks
@pytest.mark.parametrize(
    ("rule", "step_rule"), [("EASGD()", "None"), ("", "CompositeRule([AllReduceGradients(), Scale(0.1)])")]
)
def test_a_main_loop_of_blocks(run_blocks, rule, step_rule):
    snapshot, reported = last_of(run_blocks, BLOCKS.format(rule=rule, step_rule=step_rule))
    for rank in range(2):
        progress = snapshot.progress[rank]
        assert (progress.epoch, progress.steps, progress.epoch_steps) == (2, 4, 2)
        assert (progress.last_epoch, progress.last_step) == (2, 100)
        assert 0 < progress.loss < 3
    assert set(reported) == {"valid_cost", "valid_error"}


@pytest.mark.parametrize("updates", ["plain", "sync_updates(plain, model.params)"])
def test_a_training_that_shared_nothing_says_so_at_its_end(run_lasagne, updates):
    outcome = run_lasagne(
        f"""
        model = Model()
        plain = lasagne.updates.sgd(model.loss, model.params, 0.1)
        train = model.compile({updates})
        for batch in iterate_minibatches(X, Y, 4):
            train(*batch)
        finish_training()
        """
    ).require_success()
    for rank, log in enumerate(outcome.logs):
        assert (f"rank {rank}: this training has shared nothing" in log) == (updates == "plain")
