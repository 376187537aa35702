import sys

from keras_preamble import DistributedOptimizer, data, dense, distribute, keras, rank, shard, size, worker

optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1)) if "sync" in sys.argv else "sgd"
model = dense(optimizer=optimizer)
x, y = data(48 * size)
history = model.fit(
    *shard(x, y),
    batch_size=8,
    epochs=3,
    initial_epoch=1,
    verbose=0,
    validation_data=shard(x, y),
    callbacks=distribute([]),
)
worker.report({f"loss {rank}": float(history.history["loss"][-1])})
