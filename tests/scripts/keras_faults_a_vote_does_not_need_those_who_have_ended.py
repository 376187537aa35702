import numpy as np

from keras_preamble import rank, worker

from platoon_plugins.keras.gradients import GradientAverage

for policy in ("all", "leader"):
    average = GradientAverage(worker)
    average.attach(policy, [np.zeros(2, "float32")])
    if rank:
        average.vote()
        average.in_place([np.ones(2, "float32")])
        assert average.stops, policy
    assert average.join() == [0, 1]
