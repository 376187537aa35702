from keras_preamble import *
from pathlib import Path

x, y = data(32)


def refused(what, **options):
    model, callbacks = options.pop("model"), options.pop("callbacks")
    try:
        model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=callbacks, **options)
    except PlatoonError as exc:
        worker.report({f"{what} {rank}": f"{type(exc).__name__}: {exc}"})
        worker.barrier(what)  # which lets late joiners through
    else:
        raise AssertionError(what)


averaged = lambda: dense(optimizer=DistributedOptimizer("sgd"))
refused("both", model=averaged(), callbacks=distribute(rule=EASGD()))
refused("neither", model=dense(), callbacks=distribute(rule=None))
refused("other model", model=dense(units=(8 + rank, 3)), callbacks=distribute())
refused("other options", model=dense(), callbacks=distribute(every_n_batches=10 + rank))
refused("other mode", model=averaged() if rank else dense(), callbacks=distribute())


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


refused("undeclared", model=dense(metrics=[Highest()]), callbacks=distribute())
Highest.adds_up = True
refused("metric", model=dense(metrics=[Highest()]), callbacks=distribute())


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
    refused("raw", model=raw, callbacks=distribute())
if keras.backend.backend() in ("tensorflow", "torch"):
    compiled = dense(optimizer=DistributedOptimizer("sgd"), jit_compile=True)
    refused("compiled", model=compiled, callbacks=distribute())

if not KERAS_2:
    keras.config.set_dtype_policy("bfloat16")
    narrow = dense()
    keras.config.set_dtype_policy("float32")
    refused("bfloat16", model=narrow, callbacks=distribute())
clipped = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.1, clipnorm=0.1 * (rank + 1))))
refused("other clipping", model=clipped, callbacks=distribute())
refused("other metrics", model=dense(metrics=["mse" if rank else "mae"]), callbacks=distribute())
refused("other epochs", model=dense(), callbacks=distribute(), epochs=2 + rank)
refused("other loss weights", model=dense(loss_weights=[1.0 + rank]), callbacks=distribute())
x_and_y = {"validation_data": (x, y)} if rank else {}
refused("one evaluates", model=dense(), callbacks=distribute(), **x_and_y)
if not KERAS_2:
    ema = dense(optimizer=keras.optimizers.SGD(0.1, use_ema=True))
    refused("average", model=ema, callbacks=distribute(rule=EASGD()))
    optimizers = keras.optimizers
    scaled = dense(optimizer=optimizers.LossScaleOptimizer(optimizers.SGD(0.1, use_ema=True)))
    refused("average inside", model=scaled, callbacks=distribute(rule=EASGD()))
    inner = {"hidden": optimizers.SGD(0.1, use_ema=True), "out": optimizers.SGD(0.1)}
    several = dense(optimizer=optimizers.MultiOptimizer(lambda v: inner[v.path.split("/")[-2]]))
    refused("average of several", model=several, callbacks=distribute(rule=EASGD()))
    refused("schedule free", model=dense(optimizer=optimizers.ScheduleFreeAdamW()), callbacks=distribute())

# What a fit of all workers has left.
model = averaged()
model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
before = flat(model.get_weights())
try:
    model.fit(x, y, batch_size=8, verbose=0)
except Exception as exc:
    worker.report({f"alone {rank}": str(exc)})
assert (flat(model.get_weights()) == before).all()
path = os.path.join(sys.argv[1], f"model{rank}" + (".h5" if KERAS_2 else ".keras"))
model.save(path)
loaded = keras.models.load_model(path)
if KERAS_2:
    refused("loaded", model=loaded, callbacks=distribute())
trained = dense()
trained.fit(x, y, batch_size=16, verbose=0)
if not KERAS_2:
    refused("trained", model=trained, callbacks=distribute())
loaded.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute(rule=EASGD()))
loaded.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
loaded.compile(DistributedOptimizer(loaded.optimizer), loss="categorical_crossentropy")
loaded.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
same_everywhere(loaded)

if rank == 0:  # one more worker joins, and trains from the start
    import subprocess

    environment = {name: value for name, value in os.environ.items() if name != "PLATOON_RANK"}
    code = Path(__file__).read_text().split("averaged = lambda")[0]
    code += "refused('late', model=dense(), callbacks=distribute())"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=200)
