from keras_preamble import *

x, y = data(40)
xv, yv = data(20, seed=1)


def fit(when, policy="any", averaged=False, rows=(40, 56), **options):
    optimizer = keras.optimizers.SGD(0.1)
    model = dense(optimizer=DistributedOptimizer(optimizer) if averaged else optimizer)
    x, y = data(rows[rank])
    at_batch = lambda callback, batch: when(len(callback.epochs), batch) and stop(callback)
    at_epoch = lambda callback, epoch, logs: when(epoch, None) and stop(callback)
    watch = Watch(batch_end=at_batch, epoch_end=at_epoch)
    callbacks = distribute([watch], policy=policy, every_n_batches=2)
    model.fit(x, y, epochs=6, batch_size=8, verbose=0, callbacks=callbacks, **options)
    counts = everyones([len(watch.epochs), watch.batches, len(watch.logs[-1])])
    assert (counts[:, 0] == counts[0, 0]).all(), counts
    assert (counts[:, 2] == counts[0, 2]).all(), counts
    same_everywhere(model)
    # Votes that travel with gradients on a GPU are seen a step later, so that no step waits for it.
    late = getattr(getattr(model.optimizer, "gradient_average", None), "on_device", False)
    return [int(n) for n in counts[:, 0]][0], [int(n) - late for n in counts[:, 1]]


valid = {"validation_data": (xv, yv)}
for averaged in (False, True):
    # Rank 1 stops at the end of epoch 1.
    assert fit(lambda epoch, batch: rank == 1 and epoch == 1 and batch is None, averaged=averaged, **valid)[0] == 2

    # Rank 1 stops in the middle of epoch 1: its own batches end there, those of rank 0, which waits for its
    # vote in the same batch, within one more; synchronous ones after the next, with which the vote comes.
    def third_of_epoch_1(epoch, batch):
        if (epoch, batch) == (1, 2) and not averaged:
            worker.barrier("third batch")
            deadline = time.monotonic() + 60
            while rank == 0 and not worker.advanced.stop_votes.voters():
                assert time.monotonic() < deadline
        return rank == 1 and (epoch, batch) == (1, 2)

    epochs, batches = fit(third_of_epoch_1, averaged=averaged)
    assert epochs == 2
    assert batches == [5 + 4, 7 + 4] if averaged else batches in ([5 + 3, 7 + 3], [5 + 4, 7 + 3]), batches
    # At the last batch of the epoch, behind which validation begins.
    assert fit(lambda epoch, batch: rank == 1 and (epoch, batch) == (1, 6), averaged=averaged, **valid)[0] in (
        (2,) if averaged else (2, 3)
    )
    if not averaged:  # a NaN of one ends the fit for all, and reaches nobody
        x_of_1 = x * np.nan if rank else x
        model = dense(optimizer=keras.optimizers.SGD(0.1))
        watch = Watch()
        callbacks = distribute([watch, keras.callbacks.TerminateOnNaN()], every_n_batches=100)
        model.fit(x_of_1, y, epochs=3, batch_size=8, verbose=0, callbacks=callbacks)
        assert watch.epochs == [0]
        assert np.isfinite(flat(model.get_weights())).all()
    # Validation every second epoch only.
    at_the_end = lambda epoch, batch: rank == 0 and epoch == 2 and batch is None
    assert fit(at_the_end, averaged=averaged, validation_freq=2, **valid)[0] == 3
    # All: rank 0 after epoch 1, rank 1 after epoch 3.
    at_end = lambda *epochs: lambda epoch, batch: batch is None and epoch == epochs[rank]
    assert fit(at_end(1, 3), "all", averaged=averaged)[0] == 4
    # Leader: rank 1 is not asked.
    assert fit(at_end(2, 0), "leader", averaged=averaged)[0] == 3
