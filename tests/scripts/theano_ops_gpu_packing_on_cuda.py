import numpy as np
import pygpu
from platoon_base.collectives.flat import FlatBuffers
from platoon_base.collectives.flat_device import averages

context = pygpu.init("cuda0", single_stream=True)
rng = np.random.RandomState(0)
for dtype in ("float16", "float32", "float64", "int8", "int32", "int64", "uint8"):
    shapes = [(), (0, 3), (7,), (300, 40), *((n, 3) for n in range(100)), (100000,)]
    host = [np.asarray(rng.randint(0, 50, s), dtype) for s in shapes]
    arrays = [pygpu.array(a, context=context) for a in host]
    arrays[3] = pygpu.array(np.ascontiguousarray(host[3].T), context=context).T
    outs = [pygpu.zeros(a.shape, dtype, context=context) for a in host]
    buffers, seen = FlatBuffers(one_stream=True), []

    def call(array, op, dest):
        seen.append((op, array.size))
        dest[...] = pygpu.array(np.asarray(array) * np.asarray(2, dtype), context=context)

    size = sum(a.size for a in host)
    for op in ("sum", "mean", "sum"):
        buffers.combine(call, op, arrays, outs)
        counted = op == "mean" and averages(dtype)
        assert seen.pop() == ("sum" if counted else op, size + counted)
        for a, out in zip(host, outs):
            np.testing.assert_array_equal(np.asarray(out), a if counted else a * np.asarray(2, dtype))
