import theano_ops_gpu_head  # noqa: F401 - puts Theano on the device
import numpy as np

from pygpu import gpuarray
from platoon_base.collectives.flat import FlatBuffers
from theano.gpuarray.type import get_context

context = get_context(None)
host = [np.asarray(np.arange(n).reshape(s) + n, "float32") for n, s in ((6, (2, 3)), (1, ()), (0, (0, 4)), (5, (5,)))]
device = [gpuarray.array(a, context=context) for a in host]
back = [gpuarray.empty(a.shape, a.dtype, context=context) for a in host]
kept, buffers = [], FlatBuffers()
for _ in range(2):
    buffers.combine(lambda array, op, dest: kept.append(array), "sum", device, back)
assert kept[0].base_data == kept[1].base_data
np.testing.assert_array_equal(np.asarray(kept[0]), np.concatenate([a.ravel() for a in host]))
for a, b in zip(host, back):
    np.testing.assert_array_equal(np.asarray(b), a)
