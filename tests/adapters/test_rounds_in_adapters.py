"""Outer-step rules in Keras, Lasagne and Blocks: against one process, with uneven batches, and short last rounds."""

import pytest
from needing import marks_of, needs_blocks, needs_theano
from scripts_here import script_path

pytestmark = pytest.mark.timeout(600)

# What each adapter's scripts prove, against one process or by hand, is in the scripts.
SCRIPTS = {
    "keras": [
        "local_sgd_at_each_batch_is_one_process",
        "moments_are_averaged_with_the_weights",
        "averages_of_weights_are_shared",
        "overlap",
        "starts_with_averaged_gradients",
    ],
    "lasagne": ["moments_are_averaged_with_the_parameters", "overlap"],
    "blocks": ["moments_are_averaged_with_the_parameters", "main_loops_with_more_batches_make", "overlap"],
}
MARKS = {"keras": [pytest.mark.keras], "lasagne": marks_of(needs_theano), "blocks": marks_of(needs_blocks)}
ROWS = [pytest.param(name, script, marks=MARKS[name]) for name in SCRIPTS for script in SCRIPTS[name]]


@pytest.mark.parametrize(("adapter", "script"), ROWS)
def test_workers(request, adapter, script):
    run = request.getfixturevalue(f"run_{adapter}")
    run(script_path(f"rounds_in_adapters_{adapter}_{script}")).require_success()


@pytest.mark.keras
def test_keras_leaves_the_average_that_was_validated(run_keras):
    """By the default rule; the log says by how much steps are scaled, on the first worker."""
    outcome = run_keras(script_path("rounds_in_adapters_keras_the_average_is_validated_and_left")).require_success()
    said = "with 2 workers, steps are 2.83 times as long"
    assert [said in log for log in outcome.logs] == [True, False]


@pytest.mark.keras
def test_keras_shortens_steps_when_the_loss_has_risen(run_keras):
    """Ten times the best in two epochs: half as long, and once more half, but no shorter than the script's."""
    outcome = run_keras(script_path("rounds_in_adapters_keras_steps_become_shorter")).require_success()
    first, second = outcome.logs
    assert first.count("so steps are shortened") == 2
    assert "steps are 1.41 times as long" in first
    assert "steps are 1 times as long" in first
    assert "shorter" not in second


@pytest.mark.keras
@pytest.mark.parametrize("rule", ["", "overlap"])
def test_keras_workers_with_more_batches_make_their_rounds_alone(run_keras, rule):
    """5 and 7 batches at a period of 3, and short rounds at the ends of epochs; all begin each epoch at the center."""
    outcome = run_keras(
        script_path("rounds_in_adapters_keras_workers_with_more_batches_make_their"),
        workers=2,
        args=[rule],
    ).require_success()
    assert outcome.reported["val_loss 0"] == outcome.reported["val_loss 1"]
    assert not any("never reached" in log for log in outcome.logs)


@pytest.mark.keras
def test_keras_says_that_a_period_is_longer_than_the_epoch(run_keras):
    outcome = run_keras(
        """
        from platoon_plugins.keras import EASGD
        model = dense()
        before = flat(model.get_weights())
        model.fit(*shard(*data(64)), batch_size=8, epochs=2, verbose=0,
                  callbacks=distribute(rule=EASGD(), every_n_batches=50))
        assert abs(flat(model.get_weights()) - before).max() > 1e-4
        """
    ).require_success()
    for log in outcome.logs:
        assert log.count("4 batches preceded an evaluation, so every_n_batches=50 is never reached") == 1, log


@pytest.mark.keras
def test_keras_says_that_the_loss_rises(run_keras):
    """The learning rate becomes too large after the second epoch; the first rank tells it, and once."""
    outcome = run_keras(
        """
        from platoon_plugins.keras import CenterMomentum
        class Rise(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == 2:
                    backend = keras.backend
                    rate = self.model.optimizer.learning_rate
                    backend.set_value(rate, 30.0) if hasattr(backend, "set_value") else rate.assign(30.0)
        x, y = data(64)
        model = dense(optimizer=keras.optimizers.SGD(0.05))
        logs = model.fit(*shard(x, y), batch_size=8, epochs=7, verbose=0,
                         callbacks=distribute([Rise()], rule=CenterMomentum(), every_n_batches=2)).history
        assert min(logs["loss"][3:6]) > 2 * min(logs["loss"][:2]), logs
        """
    ).require_success()
    assert outcome.logs[0].count("the training loss is") == 1, outcome.logs[0]
    assert "the training loss is" not in outcome.logs[1]


@needs_theano
def test_lasagne_workers_with_more_batches_make_their_rounds_alone(run_lasagne):
    """5 and 8 batches an epoch at a period of 3; the evaluations and the end meet all the same."""
    outcome = run_lasagne(
        """
        from platoon_plugins.lasagne import DiLoCo
        w = theano.shared(np.zeros(3, "f4"), name="w")
        x, y = T.fmatrix("x"), T.fvector("y")
        loss = T.sqr(T.dot(x, w) - y).mean()
        rule = DiLoCo(0.5, 0.5, overlap=0.5)
        updates = sync_updates(lasagne.updates.sgd(loss, [w], 0.05), [w], rule, every_n_batches=3)
        train, error = theano.function([x, y], loss, updates=updates), theano.function([x, y], loss)
        errors = []
        for epoch in range(6):
            for step in range(5 + 3 * rank):
                train(X[step::8], Y[step::8])
            errors.append(float(evaluate(error, X, Y, 6)))
            begins = worker.gather(w.get_value().tobytes())
            assert begins[0] == begins[1], "all go on from the center, so nobody's next round is left out"
        finish_training()
        assert errors[-1] < 0.2 * errors[0], errors
        worker.report({f"w {rank}": w.get_value().tobytes().hex(), f"errors {rank}": str(errors)})
        """
    ).require_success()
    for name in ("w", "errors"):
        assert outcome.reported[f"{name} 0"] == outcome.reported[f"{name} 1"]


@needs_theano
def test_lasagne_evaluates_what_was_learned_though_the_period_is_longer_than_the_epoch(run_lasagne):
    """By ASGD the center is the first value and the progress of all."""
    outcome = run_lasagne(script_path("rounds_in_adapters_lasagne_evaluates_what_was_learned")).require_success()
    for rank, log in enumerate(outcome.logs):
        told = f"{2 + rank} batches preceded an evaluation, so every_n_batches=50 is never reached"
        assert log.count(told) == 1, log


@needs_blocks
def test_blocks_evaluates_what_was_learned_though_the_period_is_longer_than_the_epoch(run_blocks):
    outcome = run_blocks(script_path("rounds_in_adapters_blocks_evaluates_what_was_learned")).require_success()
    for log in outcome.logs:
        assert log.count("5 batches preceded an evaluation, so every_n_batches=50 is never reached") == 1, log


@needs_blocks
def test_blocks_does_not_synchronize_twice_where_an_evaluation_and_a_period_end_together(run_blocks):
    """10 batches at a period of 5, which is an epoch."""
    outcome = run_blocks(
        """
from platoon_base.worker.shared_parameters import SharedParameters
from platoon_plugins.blocks import EASGD
cost, _ = network()
monitoring = DistributedMonitoring([cost], stream(40, seed=1), prefix="valid", every_n_batches=5)
sync = ParameterSync(EASGD(), every_n_batches=5)
made, real = [], SharedParameters.sync
SharedParameters.sync = lambda *args, **kwargs: made.append(kwargs["part"]) or real(*args, **kwargs)
main_loop = loop(cost, shard_stream(stream(80)), [sync, monitoring, FinishAfter(after_n_epochs=2)], Scale(0.1))
main_loop.run()
assert made == [1.0, 1.0], made  # nor at the end of training, which would change what was evaluated
"""
    ).require_success()
    assert not any("batches preceded an evaluation" in log for log in outcome.logs)


# Gossip.


@pytest.mark.keras
def test_keras_validates_and_keeps_the_consensus(run_keras):
    run_keras(script_path("gossip_in_adapters_keras")).require_success()


@needs_theano
def test_lasagne_evaluates_and_keeps_the_consensus(run_lasagne):
    run_lasagne(script_path("gossip_in_adapters_lasagne")).require_success()


@needs_theano
@needs_blocks
def test_blocks_monitors_and_keeps_the_consensus(run_blocks):
    run_blocks(script_path("gossip_in_adapters_blocks")).require_success()
