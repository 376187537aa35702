"""Singular vectors of spectral_norm, of opposite signs on two workers: their mean would have a length of about 0."""

from job_preamble import rank, worker
import torch
from torch import nn
from platoon_base.torch_loops import average_buffers

new, old = nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm


class SpectralNorm:
    """A hook that has nothing but the name of torch's."""

    def __call__(self, module, inputs):
        pass


torch.manual_seed(0)
model = nn.Sequential(new(nn.Linear(6, 8)), nn.BatchNorm1d(8), old(nn.Linear(8, 8)), new(nn.Conv1d(8, 3, 2)))
model[1].register_forward_pre_hook(SpectralNorm())
for _ in range(200):
    model[0](torch.ones(2, 6)), model[2](torch.ones(2, 8)), model[3](torch.ones(2, 8, 4))
vectors = [buffer for name, buffer in model.named_buffers() if name.endswith(("_u", "_v"))]
assert len(vectors) == 6
model[1].running_mean.fill_(rank)
for vector in vectors:
    vector *= 1 - 2 * rank
mine = torch.cat(vectors)
for weights, owner in (([3, 1], 0), ([0, 1], 1)):
    for vector in vectors:
        vector.copy_(vector.abs() if rank else -vector.abs())
    theirs = worker.all_gather(torch.cat(vectors))
    average_buffers(worker, model, weights[rank])
    assert torch.equal(torch.cat(vectors), theirs[owner])
    assert model[1].running_mean.eq(weights[1] / sum(weights)).all()
    model[1].running_mean.fill_(rank)
others = nn.Module()  # of other dtypes, whose means are none
others.register_buffer("mask", torch.tensor([rank == 1, True]))
others.register_buffer("steps", torch.tensor(2**60 + rank))
others.register_buffer("phase", torch.tensor([1 + 1j * rank]))
average_buffers(worker, others, [0, 1][rank])
assert others.mask.tolist() == [True, True] and others.steps == 2**60 + 1 and others.phase == 1 + 1j
others.phase += 2j * rank
average_buffers(worker, others)
assert others.phase == 1 + 2j
average_buffers(worker, model, 0)  # none counts: all keep their own
start = 0
for vector in vectors:
    vector.copy_(mine[start : start + len(vector)])
    start += len(vector)
average_buffers(worker, model)
model.eval()
model[2](torch.ones(2, 8))  # computes its weight
for weight in (model[0].weight, model[2].weight, model[3].weight.flatten(1)):
    norm = torch.linalg.matrix_norm(weight.detach(), 2)
    assert abs(norm - 1) < 1e-3, norm
worker.close()
