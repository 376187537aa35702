from lasagne_preamble import *

for fold in range(3):
    model = Model(weights=0.1 * fold)
    updates = lasagne.updates.sgd(model.loss, model.params, 0.01)
    train = model.compile(sync_updates(updates, model.params, EASGD(), every_n_batches=3))
    stop = StopOnPatience(2)
    for epoch in range(1, 9):
        for batch in iterate_minibatches(X, Y, 4, shuffle=True, epoch=epoch):
            train(*batch)
        if stop(max(3 - epoch, 0)):
            break
    assert (epoch, stop.reason) == (5, "no improvement in 2 evaluations"), (fold, epoch)
    own = model.values(model.params)
    finish_training()
    if rank == 0:
        np.savez(f"{sys.argv[1]}/{fold}.npz", *lasagne.layers.get_all_param_values(model.network))
    worker.barrier("saved")
    with np.load(f"{sys.argv[1]}/{fold}.npz") as file:
        saved = [file[name] for name in file]
    for value, other in zip(lasagne.layers.get_all_param_values(model.network), saved):
        np.testing.assert_array_equal(value, other)
    if size == 1:
        assert all((a == b).all() for a, b in zip(own, model.values(model.params)))
assert not worker.should_stop
