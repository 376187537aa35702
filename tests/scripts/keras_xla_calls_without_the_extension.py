import sys

sys.modules["platoon_base.jax_arrays.calls"] = None  # As it is without the C extension, or before JAX 0.5.

from keras_preamble import *

require_one_process(lambda wrapped: dense(optimizer=wrapped(keras.optimizers.SGD(0.1))), *data(64), epochs=2)
assert "platoon_base.jax_arrays" not in sys.modules
