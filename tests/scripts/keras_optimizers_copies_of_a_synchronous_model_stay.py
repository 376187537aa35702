import os
import sys

from keras_preamble import DistributedOptimizer, data, dense, distribute, everyones, flat, keras, rank, shard, size

import copy
import pickle

x, y = data(8 * size * 4)
sgd = lambda: keras.optimizers.SGD(0.5, momentum=0.9)
one = dense(optimizer=sgd())
one.fit(x, y, batch_size=8 * size, epochs=2, shuffle=False, verbose=0)


def from_file(model):
    path = os.path.join(sys.argv[1], f"model{rank}.keras")
    model.save(path)
    return keras.models.load_model(path)


def from_config(model):
    copied = dense(optimizer=keras.optimizers.deserialize(keras.optimizers.serialize(model.optimizer)))
    copied.set_weights(model.get_weights())
    copied.optimizer.build(copied.trainable_variables)
    for variable, value in zip(copied.optimizer.variables, model.optimizer.variables):
        variable.assign(value)
    return copied


options = dict(batch_size=8, shuffle=False, verbose=0)
copies = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "file": from_file,
    "configuration": from_config,
}
for name, copied in copies.items():
    for before in (0, 1):
        model = dense(optimizer=DistributedOptimizer(sgd()))
        model.fit(*shard(x, y), epochs=before, callbacks=distribute(), **options)
        if not before:
            model.optimizer.build(model.trainable_variables)
        model = copied(model)
        model.fit(
            *shard(x, y),
            initial_epoch=before,
            epochs=2,
            **options,
            callbacks=distribute(rule=None if before else "auto"),
        )
        assert abs(flat(one.get_weights()) - flat(model.get_weights())).max() < 1e-5, (name, before)
        assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()
