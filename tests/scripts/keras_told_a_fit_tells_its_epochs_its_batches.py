from keras_preamble import *

optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1)) if "sync" in sys.argv else "sgd"
model = dense(optimizer=optimizer)
x, y = data(48 * size)
history = fit(model, x, y, valid=(x, y), epochs=3, initial_epoch=1)
worker.report({f"loss {rank}": float(history.history["loss"][-1])})
