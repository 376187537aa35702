import numpy as np
import torch
from platoon_base import connect
from platoon_base.errors import ConfigurationError
from refusing import raises

worker = connect()
rank, size = worker.global_rank, worker.global_size
for dtype in (torch.float16, torch.float32, torch.float64, torch.int8, torch.int32, torch.int64, torch.uint8):
    for shape in ((), (17,), (3, 5)):
        x = torch.full(shape, rank + 1).to(dtype).requires_grad_(dtype.is_floating_point)
        assert (worker.all_reduce(x) == 3).all() and (x == rank + 1).all()
        assert (worker.all_reduce(x, "max") == 2).all()
        assert worker.all_gather(x).shape == (2, *shape) and (worker.all_gather(x)[1] == 2).all()
        assert worker.all_reduce(x, "sum", x) is x and (x == 3).all()
x = torch.arange(10.0)[::2] + rank
worker.broadcast([x], root=1)
assert x.tolist() == [1, 3, 5, 7, 9]
assert worker.advanced.reduce_scatter(torch.eye(2)).tolist() == [[2, 0], [0, 2]][rank]


def refused(text, call, *args, **options):
    with raises(ConfigurationError, text):
        call(*args, **options)


refused("dtype torch.bfloat16", worker.all_reduce, torch.ones(2, dtype=torch.bfloat16))
refused("dtype torch.bool", worker.all_reduce, torch.ones(2, dtype=torch.bool))
refused("layout torch.sparse_coo", worker.all_reduce, torch.eye(2).to_sparse())
refused("the first axis", worker.advanced.reduce_scatter, torch.ones(3))
refused("out of shape (3,)", worker.all_reduce, torch.ones(2), dest=torch.ones(3))
refused("out of type ndarray", worker.all_reduce, torch.ones(2), dest=np.ones(2, "f4"))
