import sys

sys.modules["platoon_base._gates"] = None

from keras_preamble import *

require_one_process(lambda wrapped: dense(optimizer=wrapped(keras.optimizers.SGD(0.1))), *data(64), epochs=2)
assert not any(name.startswith("platoon_base.jax_arrays.") for name in sys.modules)
