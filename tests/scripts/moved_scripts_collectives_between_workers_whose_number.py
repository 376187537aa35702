import numpy

from by_hand_preamble import worker

import theano
from platoon_base.platoon_api.ops import AllReduceSum
from platoon_base.platoon_api.training.global_dynamics import SumSGD

rank = worker.global_rank
assert worker.global_size == worker.local_size == 2 and worker.local_rank == rank
src = numpy.array([1.0, 5.0]) + rank
for op, expected in {
    "+": [3, 11],
    "sum": [3, 11],
    "add": [3, 11],
    "*": [2, 30],
    "prod": [2, 30],
    "product": [2, 30],
    "mul": [2, 30],
    "max": [2, 6],
    "maximum": [2, 6],
    "min": [1, 5],
    "minimum": [1, 5],
}.items():
    numpy.testing.assert_array_equal(worker.all_reduce(src, op), expected)
dest = numpy.zeros(2)
assert worker.all_reduce(src, "sum", dest) is None
numpy.testing.assert_array_equal(dest, [3, 11])
updates = theano.shared(src)
rule = SumSGD(worker)
rule.make_rule(updates)
rule()
numpy.testing.assert_array_equal(updates.get_value(), [3, 11])
x = theano.tensor.dvector()
f = theano.function([x], [AllReduceSum(x, worker=worker), AllReduceSum(x + 1)])  # the second one finds the job
numpy.testing.assert_array_equal(f(src), [[3, 11], [5, 13]])
print("all agree")
