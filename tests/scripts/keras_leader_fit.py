from keras_preamble import *
from platoon_plugins.keras import LEADER_ONLY

x, y = data(61)
xv, yv = data(23, seed=1)


class Ends(keras.callbacks.Callback):
    # Before the callbacks that write have come to the epoch.

    def on_epoch_end(self, epoch, logs=None):
        if rank == 0 and epoch == 2:
            if sys.argv[2] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("disk full")


class Writer(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.note("begins")

    def on_epoch_end(self, epoch, logs=None):
        self.note(f"ends {epoch}")

    def note(self, text):
        with open(os.path.join(sys.argv[1], "notes"), "a") as file:
            file.write(f"{rank} {text}\n")


path = os.path.join(sys.argv[1], "best.weights.h5")
best = keras.callbacks.ModelCheckpoint(path, save_best_only=True, save_weights_only=True, verbose=1)
watch = Watch()
model = dense(optimizer=keras.optimizers.SGD(0.05))
callbacks = [Ends(), watch, Writer(), best, keras.callbacks.CSVLogger(os.path.join(sys.argv[1], "log.csv"))]
if sys.argv[3:] == ["diverges"]:
    callbacks.insert(0, keras.callbacks.LearningRateScheduler(lambda epoch: 0.05 if epoch < 2 else 30.0))
ours = {"leader_only": (*LEADER_ONLY, Writer), "every_n_batches": 2}
history = fit(model, x, y, callbacks=callbacks, valid=(xv, yv), epochs=5, batch_size=5, verbose=2, **ours)
values = [float(value) for value in history.history["val_loss"]]
alone = model.evaluate(xv, yv, verbose=0)[0]
model.load_weights(path)
kept = model.evaluate(xv, yv, verbose=0)[0]
worker.report({"last": values[-1], "alone": float(alone), "best": min(values), "kept": float(kept)})
worker.report({"leads": int(worker.is_leader), "keras": 2 if KERAS_2 else 3})
