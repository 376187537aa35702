from keras_preamble import DistributedOptimizer, dense, everyones, flat, keras
from keras_tensors_order import rank, train

model = dense(optimizer=DistributedOptimizer("sgd"))
weight = model.trainable_weights[2]
found = []


class Freeze(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 5:
            found.append(weight.numpy())
            weight.value.requires_grad_(False)


train(model, rows=[28, 20][rank], callbacks=[Freeze()])
everyone = everyones(flat(model.get_weights()))
assert (everyone[0] == everyone[1]).all()
assert len(found) == 1 - rank and all((weight.numpy() == each).all() for each in found)
