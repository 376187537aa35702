from keras_preamble import *


class Keep(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.kept = [weight.value for weight in self.model.trainable_variables]


for callbacks in (lambda each: each, lambda each: distribute(each, rule=EASGD(), every_n_batches=2)):
    model, keep = dense(), Keep()
    x, y = data(24)
    model.fit(x[rank::2], y[rank::2], batch_size=4, epochs=2, verbose=0, callbacks=callbacks([keep]))
    assert (flat(keep.kept) == flat(model.get_weights())).all()
