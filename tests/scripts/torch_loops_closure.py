"""LBFGS calls its closure as often as the loss tells it to: with the loss of all, two workers train as one process."""

from job_preamble import worker
import torch
from platoon_base.torch_loops import GradientAverage

generator = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=generator, dtype=torch.float64)
Y = torch.sin(X.sum(1, keepdim=True))


def train(model, x, y, average, mean):
    """Return the loss before each step, and how often the closure was called."""
    optimizer, calls = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe"), 0

    def closure():
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        average(len(x))
        return mean(loss.item(), len(x))

    return [float(optimizer.step(closure)) for _ in range(3)], calls


def build(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()


rows = slice(0, 45) if worker.global_rank == 0 else slice(45, 60)
model = build(worker.global_rank)
found = train(
    model,
    X[rows],
    Y[rows],
    GradientAverage(worker, model),
    lambda loss, rows: worker.reduce_metrics({"loss": (loss * rows, rows)})["loss"],
)
alone = build(0)
right = train(alone, X, Y, lambda rows: None, lambda loss, rows: loss)
torch.testing.assert_close(found[0], right[0], rtol=1e-6, atol=1e-9)
assert found[1] == right[1], (found, right)
for mine, by_one in zip(model.parameters(), alone.parameters()):
    torch.testing.assert_close(mine, by_one, rtol=1e-5, atol=1e-7)
worker.close()
