from keras_preamble import *
from platoon_plugins.keras.gradients import Batch, GradientAverage

average = GradientAverage(worker)
average.attach("any", [np.zeros(3, "float16")])
for weights, expected in (((5, 5), 2.0), ((0, 0), 0.0), ((100, 300), 2.5)):
    for _ in range(2):
        (mean,) = average.average(Batch([np.full(3, 1 + 2 * rank, "float16")], weights[rank], [True]))
    np.testing.assert_allclose(mean, expected)
