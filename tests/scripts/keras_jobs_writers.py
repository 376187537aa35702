from keras_preamble import *


def dense_prediction(values, model, x):
    weights, start = [], 0
    for like in model.get_weights():
        weights.append(values[start : start + like.size].reshape(like.shape))
        start += like.size
    hidden = np.tanh(x @ weights[0] + weights[1])
    scores = np.exp(hidden @ weights[2] + weights[3])
    return scores / scores.sum(axis=1, keepdims=True)


folder = sys.argv[1]
x, y = data(90)
xv, yv = data(31, seed=1)
path = os.path.join(folder, f"rank{rank}" + (".h5" if KERAS_2 else ".keras"))
model = dense(optimizer=keras.optimizers.SGD(0.5, momentum=0.9))
seen = []


def note(callback, epoch, logs):
    seen.append((logs["val_loss"], flat(callback.model.get_weights())))
    logs["falling then rising"] = abs(epoch - 1)


callbacks = [
    Watch(epoch_end=note),
    keras.callbacks.ModelCheckpoint(path, monitor="val_loss", verbose=1),
    keras.callbacks.CSVLogger(os.path.join(folder, f"rank{rank}.csv")),
    keras.callbacks.ReduceLROnPlateau(monitor="falling then rising", patience=1, factor=0.5, min_delta=0, mode="min"),
    keras.callbacks.EarlyStopping(
        monitor="falling then rising", patience=3, restore_best_weights=True, mode="min", verbose=1
    ),
]
by_rule = {"rule": EASGD(), "every_n_batches": 2}
fit(model, x, y, callbacks=callbacks, valid=(xv, yv), epochs=9, verbose=1, **by_rule)
assert len(seen) == 5, len(seen)
assert (flat(model.get_weights()) == seen[1][1]).all()
everyone = everyones(seen[-1][1])
assert (everyone == everyone[0]).all()
if rank == 0:
    np.savez(os.path.join(folder, "expected.npz"), x=xv, y=dense_prediction(seen[-1][1], model, xv))
