import numpy as np

from function_gpu_header import X, close, size
from platoon_base.theano_ops import function, scatter

xs = scatter(X, "xs")
outputs = [xs.mean(0), xs.sum(), xs.max(0), xs.min(0), xs]
f = function([], outputs, reduce=["mean", "sum", "max", "min", "gather"], sliceable_shareds=[xs])
own = [X[r::size] for r in range(size)]
for batch_s, rows in ((None, np.concatenate(own)), ([[], [1, 2]], own[1][[1, 2]]), (slice(2, 9), None)):
    rows = np.concatenate([part[batch_s] for part in own]) if rows is None else rows
    for num_slices in (1, 3):
        found = f(batch_s=batch_s, num_slices=num_slices)
        for value, expected in zip(found, [rows.mean(0), rows.sum(), rows.max(0), rows.min(0), rows]):
            np.testing.assert_allclose(value, expected, **close)
