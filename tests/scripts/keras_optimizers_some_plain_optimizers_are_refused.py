from keras_preamble import *
from keras_gan import Gan

x, y = data(64)
one_plain = Gan()
one_plain.compile(DistributedOptimizer("adam"), keras.optimizers.Adam(0.01))
beside = dense(optimizer=DistributedOptimizer("sgd"))
beside.other = keras.optimizers.SGD(0.1)
shared = DistributedOptimizer(keras.optimizers.SGD(0.1))
twin = dense(optimizer=shared)
twin.other = type(shared).from_config(shared.get_config())
for model, complaint in ((one_plain, "a plain"), (beside, "a plain"), (twin, "share an average")):
    with raises(PlatoonError, complaint, "DistributedOptimizer on"):
        model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
plain = Gan()
plain.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1))
plain.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute(rule=EASGD()))
same_everywhere(plain)
