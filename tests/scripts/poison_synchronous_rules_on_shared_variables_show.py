import numpy as np
import theano
from platoon_base import connect
from platoon_base.platoon_api.global_dynamics import EASGD, AverageSGD

with connect() as worker:
    x, c, u = (theano.shared(np.zeros((3, 4), "float32"), name=name) for name in "xcu")
    average, elastic = AverageSGD(worker), EASGD(worker)
    average.make_rule(u)
    elastic.make_rule(x, c, 0.3)
    for name, variable, common, rule in (("average", u, u, average), ("elastic", x, c, elastic)):
        for step in range(10):
            values = np.full((3, 4), worker.global_rank + 1, "float32")
            if step == 3 and worker.global_rank == 1:
                values[1, 2] = np.nan
            variable.set_value(values)
            rule()
            if not np.isfinite(common.get_value()).all():
                break
        bad = np.flatnonzero(~np.isfinite(common.get_value())).tolist()
        worker.report({f"{name} {worker.global_rank}": f"step {step}: elements {bad}"})
