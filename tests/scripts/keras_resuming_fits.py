from keras_preamble import *

averaged, epochs, expected, again = sys.argv[2:]
x, y = data(32)
model = dense(optimizer=DistributedOptimizer("sgd") if int(averaged) else "sgd")


def epochs_of_fit(**options):
    watch = Watch(epoch_end=lambda callback, epoch, logs: rank == 1 and epoch == 1 and stop(callback))
    model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute([watch]), **options)
    return watch.epochs


found = epochs_of_fit(epochs=int(epochs))
assert found == json.loads(expected), found
# Each later fit is a training of its own.
assert epochs_of_fit(epochs=2) == json.loads(again)
weights = everyones(flat(model.get_weights()))
assert (weights[0] == weights[1]).all()
