import os
import sys

from keras_preamble import data, dense, distribute, keras, rank, shard

import tensorflow as tf
from tensorflow.core.util import event_pb2

x, y = data(64)
xv, yv = data(31, seed=1)
folder = os.path.join(sys.argv[1], f"logs{rank}")
model = dense(optimizer=keras.optimizers.SGD(0.0))
board = keras.callbacks.TensorBoard(folder, write_graph=False)
model.fit(*shard(x, y), validation_data=shard(xv, yv), batch_size=8, verbose=0, callbacks=distribute([board]))
if rank:
    assert not os.path.exists(folder)
else:
    found = {}
    for kind in ("train", "validation"):
        (name,) = os.listdir(os.path.join(folder, kind))
        for record in tf.data.TFRecordDataset(os.path.join(folder, kind, name)):
            for value in event_pb2.Event.FromString(record.numpy()).summary.value:
                found[kind, value.tag] = float(tf.make_ndarray(value.tensor))
    train, valid = dense().evaluate(x, y, verbose=0), dense().evaluate(xv, yv, verbose=0)
    assert abs(found["train", "epoch_loss"] - train[0]) < 1e-6, (found, train)
    for tag, value in {
        "epoch_loss": valid[0],
        "evaluation_loss_vs_iterations": valid[0],
        "evaluation_accuracy_vs_iterations": valid[1],
    }.items():
        assert abs(found["validation", tag] - value) < 1e-6, (found, valid)
