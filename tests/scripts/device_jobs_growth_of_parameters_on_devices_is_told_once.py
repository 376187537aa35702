import numpy as np

from device_preamble import EASGD, on_device, rank

from platoon_base.worker.divergence import DivergenceWatch

watch = DivergenceWatch(rank)
for t in range(60):
    arrays = [on_device(np.full(shape, 1.2**t), "float32") for shape in ((), (3, 50), (0, 4), (70, 128))]
    watch.before_sync(arrays, EASGD(0.5))
    watch.after_sync(arrays, EASGD(0.5))
