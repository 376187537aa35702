import sys
from platoon_base import compat

compat.apply()
import numpy as np
import theano
import theano.tensor as T
from platoon_base.job import single_worker
from platoon_base.theano_ops import AllReduce
from platoon_base.theano_ops.base import JobOp

junk = [object() for _ in range(int(sys.argv[1]))]  # other addresses
with single_worker() as worker:
    x = T.fmatrix("x")
    weights = [theano.shared(np.eye(3, dtype="float32"), name=f"w{i}") for i in range(4)]
    layers = [x]
    for w in weights:
        layers.append(T.nnet.sigmoid((layers[-1].dimshuffle(0, 1, "x") * w).sum(axis=1)))
    cost = AllReduce(worker)(layers[2]).sum() + AllReduce(worker, "max")(layers[-1]).sum()
    grads = [AllReduce(worker)(g) for g in theano.grad(cost, weights)]
    outputs = [cost] if len(sys.argv) < 3 else [T.sqr(grads[2]).sum(), layers[3], cost]
    function = theano.function([x], outputs, updates=[(w, w - g) for w, g in zip(weights, grads)])
    for node in function.maker.fgraph.toposort():
        if isinstance(node.op, JobOp):
            print("call", node.op.reduction, node.op.turn, len(node.inputs))
    if len(sys.argv) < 3:
        print(theano.printing.debugprint(function, file="str"))
