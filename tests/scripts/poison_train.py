import sys
import numpy as np
from poison_values import HUGE, POISONS, ROUNDS, SHAPES, TURNS
from platoon_base import ASGD, EASGD, CenterMomentum, connect  # noqa: F401 - for the text of the rule
from platoon_base.centers import host_kernels as kernels
from platoon_base.errors import NonFiniteError

folder, rule, policy, form = sys.argv[1:]
assert (form == "c") == kernels.HAVE_FUSED


class Variable:
    """What is used of Theano's shared variables."""

    def __init__(self, name, value, in_place):
        self.name, self.in_place = name, in_place
        self.set_value(value)

    def get_value(self, borrow=False, return_internal_type=False):
        return self.value if borrow and self.in_place else self.value.copy()

    def set_value(self, value, borrow=False):
        self.value = np.array(value)


def values():
    return [p.get_value().ravel() for p in params]


def put(poison):
    for (i, element), value in poison.items():
        array = params[i].get_value()
        array.reshape(-1)[element] = value * (np.finfo(array.dtype).max if (i, element) == HUGE else 1)
        params[i].set_value(array)


seen, told = {}, []
with connect() as worker:
    rank = worker.global_rank
    for number, (dtype, name, locked) in enumerate(ROUNDS):
        poison = POISONS[name]
        with np.load(f"{folder}/{dtype}.npz") as file:
            data = dict(file)
        params = [Variable(name, data[f"start {name}"], in_place=name != "b") for name in SHAPES]
        worker.init_shared_params(params, eval(rule), on_nonfinite=policy)
        worker.barrier("all start from the same values")
        worker.progress(steps=10)
        for turn, who in enumerate(TURNS):
            if who == rank:
                if turn < 2:
                    for p in params:
                        p.set_value(p.get_value() + data[f"move {rank} {p.name}"])
                if turn == 0:
                    put(poison)
                if turn == 3:
                    put(dict.fromkeys(poison, -0.8))
                try:
                    worker.sync_params(synchronous=locked)
                except NonFiniteError as error:
                    assert policy == "raise"
                    told.append(str(error))
                own = values()
                with worker.center_params():
                    seen[f"{number} {turn}"] = np.concatenate(own + values())
            worker.barrier()
        worker.release_shared_params()
    np.savez(f"{folder}/seen{rank}.npz", told=np.array(told, dtype=str), **seen)
