from keras_preamble import *
from pathlib import Path

x, y = data(32)


def refused(*words, model, callbacks, **options):
    try:
        model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=callbacks, **options)
    except PlatoonError as exc:
        text = f"{type(exc).__name__}: {exc}"
        assert all(word in text for word in words), text
        worker.barrier(words[-1])  # which lets late joiners through
    else:
        raise AssertionError(words)


averaged = lambda: dense(optimizer=DistributedOptimizer("sgd"))
refused("synchronize the workers twice: pass rule=None", model=averaged(), callbacks=distribute(rule=EASGD()))
refused("compile with DistributedOptimizer", model=dense(), callbacks=distribute(rule=None))
refused("LayoutMismatchError", model=dense(units=(8 + rank, 3)), callbacks=distribute())
refused("LayoutMismatchError", "every_n_batches=1", model=dense(), callbacks=distribute(every_n_batches=10 + rank))
refused("LayoutMismatchError", model=averaged() if rank else dense(), callbacks=distribute())


class Highest(keras.metrics.Metric):
    def __init__(self, name="highest", **options):
        super().__init__(name=name, **options)
        self.value = self.add_weight(name="value", shape=(), initializer="ones")

    def update_state(self, y_true, y_pred, sample_weight=None):
        return [] if KERAS_2 else self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self):
        return self.value * 1.0

    def reset_state(self):
        self.value.assign(1.0)

    def reset_states(self):
        keras.backend.set_value(self.value, 1.0)


refused("`adds_up = True`", model=dense(metrics=[Highest()]), callbacks=distribute())
Highest.adds_up = True
refused("does not start from zero", model=dense(metrics=[Highest()]), callbacks=distribute())


class Share(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(y_pred[:, 0])


dense(metrics=[Share()]).fit(*shard(x, y), verbose=0, callbacks=distribute())
if not KERAS_2:

    class Raw(keras.Sequential):
        def get_metrics_result(self):
            return {}

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return {"raw": keras.ops.mean(y_pred, axis=0)}

    raw = Raw([keras.Input((6,)), L.Dense(3)])
    raw.compile("sgd", loss="mse")
    refused("let the step update a metric", model=raw, callbacks=distribute())
if keras.backend.backend() in ("tensorflow", "torch"):
    compiled = dense(optimizer=DistributedOptimizer("sgd"), jit_compile=True)
    refused("call model.compile(..., jit_compile=False)", model=compiled, callbacks=distribute())

if not KERAS_2:
    keras.config.set_dtype_policy("bfloat16")
    narrow = dense()
    keras.config.set_dtype_policy("float32")
    refused("weights stay float32", model=narrow, callbacks=distribute())
clipped = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.1, clipnorm=0.1 * (rank + 1))))
refused('"clipnorm": 0.1', model=clipped, callbacks=distribute())
refused("LayoutMismatchError", "metrics=[mae]", model=dense(metrics=["mse" if rank else "mae"]), callbacks=distribute())
refused("LayoutMismatchError", "epochs=3", model=dense(), callbacks=distribute(), epochs=2 + rank)
refused("LayoutMismatchError", "_weights=[2.0]", model=dense(loss_weights=[1.0 + rank]), callbacks=distribute())
x_and_y = {"validation_data": (x, y)} if rank else {}
refused("ranks [1] evaluate after epoch 1", model=dense(), callbacks=distribute(), **x_and_y)
if not KERAS_2:
    ema = dense(optimizer=keras.optimizers.SGD(0.1, use_ema=True))
    refused("use_ema=True and a rule", model=ema, callbacks=distribute(rule=EASGD()))
    optimizers = keras.optimizers
    scaled = dense(optimizer=optimizers.LossScaleOptimizer(optimizers.SGD(0.1, use_ema=True)))
    refused("use_ema=True and a rule", model=scaled, callbacks=distribute(rule=EASGD()))
    inner = {"hidden": optimizers.SGD(0.1, use_ema=True), "out": optimizers.SGD(0.1)}
    several = dense(optimizer=optimizers.MultiOptimizer(lambda v: inner[v.path.split("/")[-2]]))
    refused("use_ema=True and a rule", model=several, callbacks=distribute(rule=EASGD()))
    refused(
        "ScheduleFreeAdamW and a rule", model=dense(optimizer=optimizers.ScheduleFreeAdamW()), callbacks=distribute()
    )
    refused("Ftrl and a rule", model=dense(optimizer=optimizers.Ftrl()), callbacks=distribute())

# What a fit of all workers has left.
model = averaged()
model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
before = flat(model.get_weights())
with raises(Exception, "distribute([...]) to each fit"):
    model.fit(x, y, batch_size=8, verbose=0)
assert (flat(model.get_weights()) == before).all()
path = os.path.join(sys.argv[1], f"model{rank}" + (".h5" if KERAS_2 else ".keras"))
model.save(path)
loaded = keras.models.load_model(path)
if KERAS_2:
    refused("that has made 2 steps", model=loaded, callbacks=distribute())
trained = dense()
trained.fit(x, y, batch_size=16, verbose=0)
if not KERAS_2:
    refused("that has made 2 steps", model=trained, callbacks=distribute())
loaded.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute(rule=EASGD()))
loaded.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
loaded.compile(DistributedOptimizer(loaded.optimizer), loss="categorical_crossentropy")
loaded.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
same_everywhere(loaded)

if rank == 0:  # one more worker joins, and trains from the start
    import subprocess

    environment = {name: value for name, value in os.environ.items() if name != "PLATOON_RANK"}
    code = Path(__file__).read_text().split("averaged = lambda")[0]
    code += "refused('joined late', model=dense(), callbacks=distribute())"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=200)
