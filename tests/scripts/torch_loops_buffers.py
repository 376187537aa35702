"""Buffers of dtypes that workers do not exchange are copied at the start, without a loss; sparse ones are refused."""

from job_preamble import ConfigurationError, raises, worker
import copy
import torch
from torch import nn
from platoon_base.torch_loops import GradientAverage, average_buffers

DTYPES = [torch.complex64, torch.complex128, torch.int16, torch.uint16, torch.bfloat16, torch.bool]
DTYPES += [torch.float8_e4m3fn] if hasattr(torch, "float8_e4m3fn") else []


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

# Running statistics move in an epoch as far as those of one process: by hand, on batches that are alike in an epoch.
norms = [nn.BatchNorm1d(2, momentum=0.05), nn.BatchNorm1d(2), nn.BatchNorm1d(2, momentum=None), nn.SyncBatchNorm(2)]
model = nn.ModuleList([nn.Linear(2, 2), *norms])
GradientAverage(worker, model)
batch = torch.tensor([[1.0, 4.0], [5.0, 2.0], [0.0, 0.0]]) + 10 * worker.global_rank
for epoch in range(3):
    for _ in range(4):
        for norm in norms:
            norm(batch)
    average_buffers(worker, model)
    average_buffers(worker, model)  # moves nothing, as no batch came between
for norm, kept in zip(norms, (0.95, 0.9, 0.0, 0.9)):
    kept **= 3 * 4 * worker.global_size
    mean = torch.tensor([2.0, 2.0]) + 10 * (worker.global_size - 1) / 2
    torch.testing.assert_close(norm.running_mean, (1 - kept) * mean)
    torch.testing.assert_close(norm.running_var, kept + (1 - kept) * torch.tensor([7.0, 4.0]))
    assert norm.momentum in (0.05, 0.1, None)
copied = copy.deepcopy(model)
for norm in norms:
    norm(batch)
average_buffers(worker, model)
copied.load_state_dict(model.state_dict())  # as AveragedModel copies buffers
average_buffers(worker, copied)  # equal on all workers, as they are averages already
for mine, right in zip(copied.buffers(), model.buffers()):
    assert torch.equal(mine, right)

for sparse in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()):
    model = nn.Linear(3, 2)
    model.register_buffer("adjacency", sparse)
    with raises(ConfigurationError, "got adjacency of layout torch.sparse_c", "model.parameters()"):
        GradientAverage(worker, model)
    GradientAverage(worker, model.parameters())
    average_buffers(worker, model)
worker.close()
