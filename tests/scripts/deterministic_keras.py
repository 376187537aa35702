"""Usage: RULE EPOCHS [FAIL_AT]: an unseeded Keras script with dropout and shuffles.

RULE is "gradients" or a rule; a worker fails at the begin of epoch FAIL_AT, counted from 0.
"""

from job_preamble import hashlib, np, os, parse_rule, signal, sys, worker
import keras
from platoon_plugins.keras import DistributedOptimizer, distribute, shard

rank, rule, epochs = worker.global_rank, sys.argv[1], int(sys.argv[2])
fail_at = int(sys.argv[3]) if len(sys.argv) > 3 else -1


class Fail(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == fail_at:
            worker.barrier("all have come to the failure")
            os.kill(os.getpid(), signal.SIGKILL)


x = np.random.standard_normal((120, 8)).astype("float32")
y = (x[:, :1] > x[:, 1:2]).astype("float32")
layers = [keras.layers.Dense(16, activation="relu", input_shape=(8,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
model = keras.models.Sequential(layers)
optimizer = "adam" if rule != "gradients" else DistributedOptimizer(keras.optimizers.Adam())
model.compile(optimizer, "mse")
callbacks = [Fail()]
if hasattr(keras.callbacks, "BackupAndRestore"):
    callbacks.append(keras.callbacks.BackupAndRestore("backup"))
by_rule = {} if rule == "gradients" else {"rule": parse_rule(rule, "the test"), "every_n_batches": 2}
history = model.fit(
    *shard(x[:108], y[:108]),
    batch_size=8,
    epochs=epochs,
    validation_data=shard(x[108:], y[108:]),
    verbose=0,
    callbacks=distribute(callbacks, **by_rule),
)
losses = [f"{value:.17g}" for value in history.history["loss"] + history.history["val_loss"]]
weights = hashlib.sha256(b"".join(np.ascontiguousarray(w).tobytes() for w in model.get_weights())).hexdigest()
print(f"bits of rank {rank}: {weights} {' '.join(losses)}", flush=True)
