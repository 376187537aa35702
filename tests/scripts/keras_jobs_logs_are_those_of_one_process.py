from keras_preamble import *

x, y = data(101)
xv, yv = data(53, seed=1)
metrics = lambda: ["accuracy", keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision")]
watch = Watch()
model = dense(optimizer=keras.optimizers.SGD(0.0), metrics=metrics())
fit(model, x, y, callbacks=[watch], valid=(xv, yv), rule=ASGD(), epochs=2)
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
options = {"valid": (xv, yv), "rule": EASGD(), "every_n_batches": 2, "epochs": 3}
history = fit(model, x, y, callbacks=[watch], **options).history
for name in ["loss", "val_loss", "val_auc"]:
    assert history[name] == [logs[name] for logs in watch.logs]
assert watch.logs[-1]["loss"] < watch.logs[0]["loss"]
same_everywhere(model)
worker.report({f"val_loss {rank}": watch.logs[-1]["val_loss"]})
