"""Averaged gradients whose weights are up to 10^8 rows, and of float64, against exact fractions."""

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

# The numbers of rows are known exactly, so float64 has its own precision.
wide = torch.nn.Linear(50, 1, bias=False).double()
average, rows = GradientAverage(worker, wide), [20, 7, 13]
for _ in range(2):
    wide.weight.grad = gradients[worker.global_rank].reshape(1, 50).double()
    average(rows[worker.global_rank])
exact = sum(n * gradient.double() for n, gradient in zip(rows, gradients)) / sum(rows)
torch.testing.assert_close(wide.weight.grad[0], exact, rtol=0, atol=1e-13)
