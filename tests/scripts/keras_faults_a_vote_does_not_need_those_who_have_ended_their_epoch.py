"""With averaged gradients: rank 0 has no batch left, so rank 1 is all there are, and leads them."""

from keras_preamble import *
from platoon_plugins.keras.gradients import Batch, GradientAverage
from platoon_plugins.keras.optimizers import ModelAverages

for policy in ("all", "leader"):
    member = GradientAverage(worker)
    average = ModelAverages([member])
    average.attach(policy, [np.zeros(2, "float32")])
    if rank:
        average.vote()
        member.average(Batch([np.ones(2, "float32")], 1.0, [True]))
        assert average.stops, policy
    assert average.join() == [0, 1]
