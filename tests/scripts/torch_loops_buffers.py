"""Buffers of dtypes that workers do not exchange are copied at the start, without a loss; sparse ones are refused."""

import torch
from torch import nn

from platoon_base import connect
from platoon_base.errors import ConfigurationError
from platoon_base.torch_loops import GradientAverage, average_buffers

DTYPES = [torch.complex64, torch.complex128, torch.int16, torch.uint16, torch.bfloat16, torch.bool]
DTYPES += [torch.float8_e4m3fn] if hasattr(torch, "float8_e4m3fn") else []

worker = connect()


def model_of(seed):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(3, 2)
    for i, dtype in enumerate(DTYPES):
        values = 2 * torch.rand(2, 4, generator=generator)
        values = torch.complex(values, -values / 3) if dtype.is_complex else 100 * values
        model.register_buffer(f"buffer {i}", values.to(dtype).T)
    model.register_buffer("scalar", torch.tensor(1j * seed))
    return model


model = model_of(worker.global_rank)
GradientAverage(worker, model)
average_buffers(worker, model)
for (name, mine), right in zip(model.named_buffers(), model_of(0).buffers()):
    as_numbers = torch.float64 if mine.dtype.is_floating_point else mine.dtype
    assert torch.equal(mine.to(as_numbers), right.to(as_numbers)), name

for sparse in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()):
    model = nn.Linear(3, 2)
    model.register_buffer("adjacency", sparse)
    try:
        GradientAverage(worker, model)
    except ConfigurationError as exc:
        assert "got adjacency of layout torch.sparse_c" in str(exc), exc
        assert "model.parameters()" in str(exc), exc
    else:
        raise AssertionError("not refused")
    GradientAverage(worker, model.parameters())
    average_buffers(worker, model)
worker.close()
