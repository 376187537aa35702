"""Averaged gradients whose weights are up to 10^8 rows, against exact fractions."""

from job_preamble import worker
from fractions import Fraction
import torch
from platoon_base.torch_loops import GradientAverage

WEIGHTS = [10**8 + 1, 3 * 10**7, 7]
gradients = [torch.randn(50, generator=torch.Generator().manual_seed(rank)) for rank in range(worker.global_size)]
model = torch.nn.Linear(50, 1, bias=False)
average = GradientAverage(worker, model)
for shift in range(3):
    weights = [WEIGHTS[(rank + shift) % 3] for rank in range(worker.global_size)]
    model.weight.grad = gradients[worker.global_rank].reshape(1, 50).clone()
    average(weights[worker.global_rank])
    for found, *given in zip(model.weight.grad[0].tolist(), *(gradient.tolist() for gradient in gradients)):
        exact = sum(w * Fraction(g) for w, g in zip(weights, given)) / sum(weights)
        assert abs(found - exact) < 1e-6 * max(map(abs, given)), (found, float(exact))
