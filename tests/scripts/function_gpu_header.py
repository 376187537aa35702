import os

os.environ["THEANO_FLAGS"] += ",force_device=True,floatX=float32"
import numpy as np
import own_pocl_cache  # noqa: F401
import theano
import theano.tensor as T  # noqa: F401
from theano.gpuarray.type import GpuArraySharedVariable  # noqa: F401
from platoon_base import connect

worker = connect()
rank, size = worker.global_rank, worker.global_size
assert theano.config.device == os.environ["PLATOON_DEVICE"] != "cpu"
rng = np.random.RandomState(0)
X, Y = rng.randn(23, 3).astype("f4"), rng.randn(23).astype("f4")
close = dict(rtol=1e-4, atol=1e-5)
