"""The optimizers of a model of Keras 3: several in one model, and those of copies, of files and of mixed precision."""

import pytest
from keras_here import both_ways, keras, needs_keras_3

pytestmark = [pytest.mark.keras, pytest.mark.timeout(300), needs_keras_3]


@both_ways
def test_a_gan_with_two_optimizers_equals_one_process(run_keras):
    """Each with averages of its own, in any order, also where one worker has fewer batches than the other."""
    run_keras(
        """
        from keras_gan import Gan
        x, y = data(8 * size * 4)
        Adam = keras.optimizers.Adam

        def made(wrap, critics=1):
            model = Gan(critics)
            model.compile(wrap(Adam(0.02)), wrap(Adam(0.01)))
            return model

        for critics in (1, 2):
            one = made(lambda optimizer: optimizer, critics)
            start = flat(one.get_weights())
            first = one.fit(x, y, batch_size=8 * size, epochs=3, shuffle=False, verbose=0).history
            model = made(DistributedOptimizer, critics)
            if rank:
                model.set_weights([w + 1 for w in model.get_weights()])
            ours = {"d_loss": [], "g_loss": []}
            for fit in range(2):  # the second goes on
                history = model.fit(*shard(x, y), batch_size=8, initial_epoch=2 * fit, epochs=2 + fit, shuffle=False,
                                    verbose=0, callbacks=distribute()).history
                ours = {name: [*values, *history[name]] for name, values in ours.items()}
            assert abs(flat(one.get_weights()) - start).max() > 0.05
            assert abs(flat(one.get_weights()) - flat(model.get_weights())).max() < 1e-4, critics
            assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()
            for name, values in first.items():
                assert abs(np.array(values) - ours[name]).max() < 1e-4, (name, first, ours)

            # Rank 1 has three batches, rank 0 four: the fourth is taken by rank 0 alone.
            own = slice(0, 32) if rank == 0 else slice(32, 56)
            model = made(DistributedOptimizer, critics)
            model.fit(x[own], y[own], batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=distribute())
            assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()
            steps = everyones(np.array([int(model.g_optimizer.iterations), int(model.d_optimizer.iterations)]))
            assert (steps == [8, 8 * critics]).all(), steps
        """
    ).require_success()


def test_optimizers_of_which_some_are_plain_are_refused(run_keras):
    run_keras(
        """
        from keras_gan import Gan
        x, y = data(64)
        one_plain = Gan()
        one_plain.compile(DistributedOptimizer("adam"), keras.optimizers.Adam(0.01))
        beside = dense(optimizer=DistributedOptimizer("sgd"))
        beside.other = keras.optimizers.SGD(0.1)
        shared = DistributedOptimizer(keras.optimizers.SGD(0.1))
        twin = dense(optimizer=shared)
        twin.other = type(shared).from_config(shared.get_config())
        for model, complaint in ((one_plain, "a plain"), (beside, "a plain"), (twin, "share an average")):
            try:
                model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
            except PlatoonError as exc:
                assert complaint in str(exc) and "DistributedOptimizer on" in str(exc), exc
            else:
                raise AssertionError(complaint)
        plain = Gan()
        plain.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1))
        plain.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute(rule=EASGD()))
        assert (everyones(flat(plain.get_weights())) == flat(plain.get_weights())).all()
        """
    ).require_success()


def test_copies_of_a_synchronous_model_stay_synchronous(run_keras, tmp_path):
    """A deep copy, a pickle, a file, a configuration: at any time, with the default rule or none."""
    run_keras(
        """
        import copy, pickle
        x, y = data(8 * size * 4)
        sgd = lambda: keras.optimizers.SGD(0.5, momentum=0.9)
        one = dense(optimizer=sgd())
        one.fit(x, y, batch_size=8 * size, epochs=2, shuffle=False, verbose=0)

        def from_file(model):
            path = os.path.join(sys.argv[1], f"model{rank}.keras")
            model.save(path)
            return keras.models.load_model(path)

        def from_config(model):
            copied = dense(optimizer=keras.optimizers.deserialize(keras.optimizers.serialize(model.optimizer)))
            copied.set_weights(model.get_weights())
            copied.optimizer.build(copied.trainable_variables)
            for variable, value in zip(copied.optimizer.variables, model.optimizer.variables):
                variable.assign(value)
            return copied

        options = dict(batch_size=8, shuffle=False, verbose=0)
        copies = {"deepcopy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model)),
                  "file": from_file, "configuration": from_config}
        for name, copied in copies.items():
            for before in (0, 1):
                model = dense(optimizer=DistributedOptimizer(sgd()))
                model.fit(*shard(x, y), epochs=before, callbacks=distribute(), **options)
                if not before:
                    model.optimizer.build(model.trainable_variables)
                model = copied(model)
                model.fit(*shard(x, y), initial_epoch=before, epochs=2, **options,
                          callbacks=distribute(rule=None if before else "auto"))
                assert abs(flat(one.get_weights()) - flat(model.get_weights())).max() < 1e-5, (name, before)
                assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()
        """
    ).require_success()


def test_copies_of_a_gan_stay_synchronous(run_keras):
    """By a deep copy and by a file, each optimizer; and by a rule only if the fit is told so."""
    run_keras(
        """
        import copy
        from keras_gan import Gan
        x, y = data(8 * size * 4)
        Adam = keras.optimizers.Adam

        def made(wrap):
            model = Gan()
            model.compile(wrap(Adam(0.02)), wrap(Adam(0.01)))
            return model

        def from_file(model):
            path = os.path.join(sys.argv[1], f"gan{rank}.keras")
            model.save(path)
            return keras.models.load_model(path)

        one = made(lambda optimizer: optimizer)
        start = flat(one.get_weights())
        one.fit(x, y, batch_size=8 * size, shuffle=False, verbose=0)
        assert abs(flat(one.get_weights()) - start).max() > 0.05
        options = dict(batch_size=8, shuffle=False, verbose=0)
        for copied, rule in ((copy.deepcopy, "auto"), (from_file, None)):
            model = copied(made(DistributedOptimizer))
            model.fit(*shard(x, y), callbacks=distribute(rule=rule), **options)
            assert abs(flat(one.get_weights()) - flat(model.get_weights())).max() < 1e-4, copied
            assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()
        model = copy.deepcopy(model)
        for rule in (EASGD(), "auto"):  # which stays with the rule
            model.fit(*shard(x, y), callbacks=distribute(rule=rule), **options)
        assert not hasattr(model.d_optimizer, "gradient_average")
        """
    ).require_success()


def test_a_copy_of_a_synchronous_model_does_not_train_alone(run_keras):
    """As the original does not; unless a rule trains it, or it gets a name of its own."""
    run_keras(
        """
        from platoon_plugins.keras import broadcast_variables
        x, y = data(8 * size * 2)
        sgd = keras.optimizers.SGD
        scaled = lambda: keras.optimizers.LossScaleOptimizer(sgd())

        def loaded(optimizer):
            path = os.path.join(sys.argv[1], f"model{rank}.keras")
            dense(optimizer=DistributedOptimizer(optimizer)).save(path)
            return keras.models.load_model(path)

        for optimizer in (sgd, scaled):
            for train in (lambda model: model.fit(*shard(x, y), verbose=0), lambda model: model.train_on_batch(x, y)):
                try:
                    train(loaded(optimizer()))
                except PlatoonError as exc:
                    assert "a copy of a DistributedOptimizer" in str(exc) and "callbacks=distribute()" in str(exc), exc
                else:
                    raise AssertionError(optimizer)
            model = loaded(optimizer())
            broadcast_variables(model)
            own = x[rank::size], y[rank::size]
            model.train_on_batch(*own)
            assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()
        model = loaded(sgd())
        try:
            model.fit(*shard(x, y), verbose=0, callbacks=distribute(rule=EASGD(), every_n_batches=10 + rank))
        except PlatoonError:
            assert model.optimizer.name.startswith("distributed_")  # as no rule has trained it
        else:
            raise AssertionError
        model.fit(*shard(x, y), verbose=0, callbacks=distribute(rule=EASGD()))
        assert not model.optimizer.name.startswith("distributed_")
        copy = keras.models.clone_model(model)
        copy.compile(model.optimizer.from_config(model.optimizer.get_config()), loss="categorical_crossentropy")
        copy.train_on_batch(*own)
        model = loaded(sgd())
        model.optimizer.name = "mine"
        model.train_on_batch(*own)
        """
    ).require_success()


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="this train_step is one of torch")
def test_the_optimizer_of_a_model_within_another(run_keras):
    """It is found in an attribute of the model that is trained; otherwise that is told."""
    run_keras(
        """
        import torch
        x, y = data(8 * size * 4)

        class Outer(keras.Model):
            def __init__(self, inner):
                super().__init__()
                self.inner, self.tracker = inner, keras.metrics.Mean("loss")
            def call(self, x):
                return self.inner(x)
            def train_step(self, data):
                self.zero_grad()
                loss = keras.ops.mean(keras.losses.categorical_crossentropy(data[1], self.inner(data[0])))
                loss.backward()
                weights = self.inner.trainable_weights
                with torch.no_grad():
                    self.inner.optimizer.apply([weight.value.grad for weight in weights], weights)
                self.tracker.update_state(loss)
                return {"loss": self.tracker.result()}

        def made(optimizer):
            outer = Outer(dense(optimizer=optimizer))
            outer.compile()
            return outer

        one, outer = made(keras.optimizers.SGD(0.5)), made(DistributedOptimizer(keras.optimizers.SGD(0.5)))
        one.fit(x, y, batch_size=8 * size, shuffle=False, verbose=0)
        fit = lambda: outer.fit(*shard(x, y), batch_size=8, shuffle=False, verbose=0, callbacks=distribute())
        try:
            fit()
        except PlatoonError as exc:
            assert "self.inner_optimizer = self.inner.optimizer" in str(exc), exc
        else:
            raise AssertionError
        outer = made(DistributedOptimizer(keras.optimizers.SGD(0.5)))
        outer.inner_optimizer = outer.inner.optimizer
        fit()
        assert abs(flat(one.get_weights()) - flat(outer.get_weights())).max() < 1e-5
        assert (everyones(flat(outer.get_weights())) == flat(outer.get_weights())).all()
        """
    ).require_success()


@both_ways
def test_a_weight_that_only_some_workers_use(run_keras):
    """Each worker averages with zeros; where a step is compiled for some weights, it is refused."""
    run_keras(
        """
        class Branch(keras.Model):
            def __init__(self):
                super().__init__()
                self.all, self.some = L.Dense(3), L.Dense(3)
                self.all.build((None, 6)), self.some.build((None, 6))
                self.built = True
            def call(self, x):
                return self.all(x) + self.some(x) if rank else self.all(x)

        x, y = data(16 * size)
        keras.utils.set_random_seed(7)
        model = Branch()
        before = flat(model.get_weights())
        model.compile(DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        try:
            model.fit(*shard(x, x[:, :3], reshuffle=False), batch_size=16, shuffle=False, verbose=0,
                      callbacks=distribute())
        except PlatoonError as exc:
            assert "got gradients of weights 2 (shape (6, 3)), 3 (shape (3,)) on some workers only" in str(exc), exc
            refused = True
        else:
            refused = False
        assert refused == (keras.backend.backend() == "tensorflow")
        if not refused:
            after = flat(model.get_weights())
            assert (everyones(after) == after).all()
            kernels = [before[:18].reshape(6, 3), before[21:39].reshape(6, 3)]
            own = x[rank::size]  # the gradient of the mean square of the errors, by hand
            error = own @ (kernels[0] + kernels[1] * (rank > 0)) - own[:, :3]
            mine = (own.T @ error * 2 / error.size).ravel()
            all_used = everyones(mine).mean(axis=0)
            some_used = everyones(mine * (rank > 0)).mean(axis=0)
            assert abs(before[:18] - 0.1 * all_used - after[:18]).max() < 1e-6
            assert abs(before[21:39] - 0.1 * some_used - after[21:39]).max() < 1e-6
        """
    ).require_success()


def test_the_loss_scale_is_one_decision_of_all_workers(run_keras):
    """The policy mixed_float16 wraps optimizers by itself; an overflow on one worker leaves the step out on all."""
    run_keras(
        """
        x, y = data(8 * size * 4)
        x[2 * 8 * size + 1] = np.inf  # a row of rank 1, in the third batch
        scaled = lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**10)
        options = dict(shuffle=False, verbose=0)
        one = dense(optimizer=scaled())
        one.fit(x, y, batch_size=8 * size, **options)

        wrapped = scaled()
        wrapped.inner_optimizer = DistributedOptimizer(wrapped.inner_optimizer)  # as compile() leaves it
        for optimizer in (DistributedOptimizer(scaled()), wrapped):
            model = dense(optimizer=optimizer)
            model.fit(*shard(x, y, reshuffle=False), batch_size=8, callbacks=distribute(), **options)
            assert abs(flat(one.get_weights()) - flat(model.get_weights())).max() < 1e-5
            number = lambda optimizer, name: float(keras.ops.convert_to_numpy(getattr(optimizer, name)))
            for name, expected in (("dynamic_scale", 2.0**9), ("iterations", 3)):
                assert number(one.optimizer, name) == expected
                assert (everyones([number(model.optimizer, name)]) == expected).all(), name

        keras.config.set_dtype_policy("mixed_float16")
        model = dense(optimizer=DistributedOptimizer("sgd"))
        keras.config.set_dtype_policy("float32")
        assert type(model.optimizer).__name__ == "LossScaleOptimizer"
        model.fit(*shard(x, y), batch_size=8, callbacks=distribute(), **options)
        assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()

        keras.config.set_dtype_policy("mixed_bfloat16" if rank else "float32")
        model = dense(optimizer="sgd")
        try:
            model.fit(*shard(x, y), batch_size=8, callbacks=distribute(), **options)
        except PlatoonError as exc:
            mine, other = ("mixed_bfloat16", "float32") if rank else ("float32", "mixed_bfloat16")
            assert f"policy='any') in {mine}, worker {1 - rank} has" in str(exc), exc
            assert f"policy='any') in {other}: what they compute would not go together" in str(exc), exc
        else:
            raise AssertionError
        """
    ).require_success()
