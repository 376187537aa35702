"""In front of them, behind them and both: files are written once, values and stops are those of all workers."""

from keras_preamble import *

x, y = data(48)
xv, yv = data(24, seed=1)
folder = sys.argv[1]


def fit(place):
    model = dense(optimizer=keras.optimizers.SGD(0.1))
    watch = Watch(epoch_end=lambda callback, epoch, logs: rank == 1 and epoch == 1 and stop(callback))
    log = keras.callbacks.CSVLogger(os.path.join(folder, place + ".csv"))
    path = os.path.join(folder, f"{place} of rank {rank}." + ("h5" if KERAS_2 else "keras"))
    save = keras.callbacks.ModelCheckpoint(path)
    ours = {
        "in front": lambda: [watch, save, log, *distribute([])],
        "behind": lambda: [*distribute([]), save, log, watch],
        "both": lambda: [save, *distribute([watch]), log],
    }[place]()
    model.fit(*shard(x, y), validation_data=shard(xv, yv), epochs=4, batch_size=8, verbose=0, callbacks=ours)
    assert watch.epochs == [0, 1], (place, watch.epochs)
    losses = everyones([logs["val_loss"] for logs in watch.logs])
    assert (losses[0] == losses[1]).all(), (place, losses)
    assert os.path.exists(path) == (rank == 0), place
    worker.barrier("written")
    with open(os.path.join(folder, place + ".csv")) as file:
        head, *lines = file.read().split()
    assert [line.split(",")[0] for line in lines] == ["0", "1"], (place, lines)


for place in ("in front", "behind", "both"):
    fit(place)
with raises(PlatoonError, "2 calls of distribute()"):
    dense().fit(*shard(x, y), verbose=0, callbacks=[*distribute(), *distribute()])
