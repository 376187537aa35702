from keras_preamble import DistributedOptimizer, KERAS_2, distribute, keras, np, os, shard
from gradients_here import labels, rows, say_results, sent_bytes, worker

np.random.seed(1)
if not KERAS_2:
    keras.utils.set_random_seed(1)
layers = [keras.layers.Dense(units, activation="relu") for units in (256, 256)]
first = keras.layers.InputLayer(input_shape=(64,)) if KERAS_2 else keras.Input((64,))
model = keras.Sequential([first, *layers, keras.layers.Dense(10, activation="softmax")])
model.compile(DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), loss="sparse_categorical_crossentropy")
before = sent_bytes()
callbacks = []
if os.environ.get("DIES") == str(worker.global_rank):
    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batch == 5 and os._exit(3))]
# The last worker has a batch less than the others: it makes calls without gradients.
model.fit(
    *shard(rows[:-50], labels[:-50]), epochs=4, batch_size=45, verbose=0, shuffle=False, callbacks=distribute(callbacks)
)
sent = sent_bytes() - before
say_results(model.evaluate(rows, labels, verbose=0), model.get_weights(), sent)
worker.barrier("end")
