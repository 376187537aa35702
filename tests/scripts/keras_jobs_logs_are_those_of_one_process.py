from keras_preamble import ASGD, EASGD, Watch, data, dense, distribute, everyones, flat, keras, rank, shard, worker

x, y = data(101)
xv, yv = data(53, seed=1)
metrics = lambda: ["accuracy", keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision")]
watch = Watch()
model = dense(optimizer=keras.optimizers.SGD(0.0), metrics=metrics())
model.fit(
    *shard(x, y),
    validation_data=shard(xv, yv),
    epochs=2,
    batch_size=8,
    verbose=0,
    callbacks=distribute([watch], rule=ASGD()),
)
names = ["loss", "accuracy", "auc", "precision"]
one = dict(zip(names, dense(metrics=metrics()).evaluate(x, y, verbose=0)))
valid = dict(zip(names, dense(metrics=metrics()).evaluate(xv, yv, verbose=0)))
for logs in watch.logs:
    for name in names:
        assert abs(logs[name] - one[name]) < 1e-6, (name, logs[name], one[name])
        assert abs(logs["val_" + name] - valid[name]) < 1e-6, (name, logs["val_" + name], valid[name])


def check(callback, epoch, logs):
    # The center is in the model, and evaluate() in a callback disturbs nobody.
    for name, value in zip(names, callback.model.evaluate(xv, yv, verbose=0)):
        assert abs(logs["val_" + name] - float(value)) < 1e-6, (name, logs, value)


watch = Watch(epoch_end=check)
model = dense(optimizer=keras.optimizers.SGD(0.5), metrics=metrics())
history = model.fit(
    *shard(x, y),
    validation_data=shard(xv, yv),
    epochs=3,
    batch_size=8,
    verbose=0,
    callbacks=distribute([watch], rule=EASGD(), every_n_batches=2),
).history
for name in ["loss", "val_loss", "val_auc"]:
    assert history[name] == [logs[name] for logs in watch.logs]
assert watch.logs[-1]["loss"] < watch.logs[0]["loss"]
assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()
worker.report({f"val_loss {rank}": watch.logs[-1]["val_loss"]})
