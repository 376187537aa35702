"""Each mistake is an error on the worker that makes it, or on all where only they together can see it."""

from job_preamble import ConfigurationError, LayoutMismatchError, raises, rank, worker
import torch
from torch import nn
from platoon_base.torch_loops import GradientAverage


def refused(call, error, text):
    with raises(error, text):
        call()


refused(lambda: GradientAverage(worker, nn.Linear(2, 2 + rank)), LayoutMismatchError, "weight")
model = nn.Linear(2, 2)
average = GradientAverage(worker, model.parameters(), bucket_bytes=1)
for weight in (-1, float("nan")):
    refused(lambda weight=weight: average(weight), ConfigurationError, "number of this worker's rows")
average(1)  # without a gradient anywhere
assert model.weight.grad is None


def two_backward_passes():
    with average.overlapping():
        model(torch.ones(1, 2)).sum().backward()
        model(torch.ones(1, 2)).sum().backward()


refused(two_backward_passes, ConfigurationError, "one backward pass within overlapping()")
embedding = nn.Embedding(3, 2, sparse=True)
average = GradientAverage(worker, embedding)
embedding(torch.tensor([1])).sum().backward()
refused(average, ConfigurationError, "sparse=False")
head = nn.Linear(2, 2)
head.bias.requires_grad_(False)
average = GradientAverage(worker, head)
head.bias.requires_grad_(True)
refused(average, ConfigurationError, "bias")
refused(average, ConfigurationError, "create a new GradientAverage")


def step_after(change, given=lambda model, optimizer: model):
    """Make a step of a model, or an optimizer, that got other parameters behind its GradientAverage."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    average = GradientAverage(worker, given(model, optimizer))
    change(model, optimizer)
    model(torch.ones(1, 2)).sum().backward()
    average()


def other_head(model, optimizer):
    model[1] = nn.Linear(2, 1)


def loaded(model, optimizer):
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


def another_group(model, optimizer):
    optimizer.add_param_group({"params": list(nn.Linear(2, 1).parameters())})


refused(lambda: step_after(other_head), ConfigurationError, "got 1.weight")
refused(lambda: step_after(loaded), ConfigurationError, "got 0.weight")
refused(lambda: step_after(another_group, lambda _, optimizer: optimizer), ConfigurationError, "got parameter 4")
step_after(lambda model, optimizer: model[1].requires_grad_(False))
step_after(lambda model, optimizer: setattr(model[1], "parent", model))  # it is walked through once
worker.barrier()
worker.close()
