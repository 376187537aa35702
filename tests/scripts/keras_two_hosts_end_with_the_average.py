from keras_preamble import *
import hashlib

x, y = data(120)
xv, yv = data(31, seed=3)
refused = ""
if not KERAS_2:
    model = dense(optimizer=keras.optimizers.SGD(0.1, use_ema=True))
    try:
        model.fit(*shard(x, y), verbose=0, callbacks=distribute(rule=EASGD(moments=True)))
    except ValueError as exc:
        refused = str(exc)
model = dense(optimizer=keras.optimizers.Adam(0.01))
fit = model.fit(*shard(x, y), validation_data=shard(xv, yv), epochs=4, batch_size=8, verbose=0, callbacks=distribute())
weights = hashlib.sha256(flat(model.get_weights()).tobytes()).hexdigest()
evaluated = float(model.evaluate(xv, yv, verbose=0)[0])
found = {"weights": weights, "validated": fit.history["val_loss"][-1], "evaluated": evaluated, "refused": refused}
print("found", json.dumps(found), flush=True)
worker.barrier("end")
