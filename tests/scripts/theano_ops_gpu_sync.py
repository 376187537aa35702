from theano_ops_gpu_head import *

start = np.arange(6, dtype="float32").reshape(2, 3)
params = [theano.shared(start, "W"), theano.shared(start[0], "b")]
worker.init_shared_params(params, EASGD(0.25))
fit = Fit(worker)
fit.begin(EASGD(0.25), 2)
synchronizer = Synchronizer(fit)
x = T.fmatrix("x")
values = Sync(synchronizer)(params[0] + x * (rank + 1), params[1] - x[0], return_list=True)
function = theano.function([x], [], updates=list(zip(params, values)))
(node,) = nodes(function)
assert type(node.op) is (GpuSync if device else Sync), node
assert node.op.inplace == (0, 1), node
assert transfers(function)[1] == 0
given = []
original = synchronizer.step


def step(arrays):
    given.append(arrays)
    original(arrays)


synchronizer.step = step
function.fn.allow_gc = False
for i in range(4):
    for turn in range(2):
        if turn == rank:
            function(np.full((2, 3), i, "float32"))
            inside = [p.get_value(borrow=True, return_internal_type=True) for p in params]
            assert all(a is b for a, b in zip(given[-1], inside))
        worker.barrier()
name = "GpuArray" if device else "ndarray"
assert {type(a).__name__ for arrays in given for a in arrays} == {name}
worker.report({f"{rank} {p} {j}": v for p in params for j, v in enumerate(p.get_value().ravel().tolist())})
with worker.center_params():
    worker.report({f"center {p} {j}": v for p in params for j, v in enumerate(p.get_value().ravel().tolist())})
