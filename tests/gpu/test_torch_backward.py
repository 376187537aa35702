"""Averages that begin in torch's backward pass, on CUDA devices: all that is queued waits for what it needs."""

import threading

import numpy as np
import pytest
from keras_here import AS_TENSORS, keras
from scripts_here import script_path

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test` runs this file in .nox/keras3")

DEVICES = [f"cuda{i}" for i in range(torch.cuda.device_count())][:2]
pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(600),
    pytest.mark.skipif(keras.backend.backend() != "torch", reason="about torch: run it with KERAS_BACKEND=torch"),
    pytest.mark.skipif(not DEVICES, reason="needs a CUDA device (see tests/README.md)"),
]


def keep_busy(times=1):
    """Let the device compute for some 50 ms, or several times that."""
    large = torch.ones(4096, 4096, device="cuda")
    for _ in range(20 * times):
        large = large @ large


class Slow(torch.autograd.Function):
    """Passes on what it gets, its gradient some time after the host has gone on."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        if gradient.is_cuda:
            keep_busy()
        return gradient * 1


class Late:
    """The first of two workers. What it averages is three times its own, and so are the weights; it is late.

    What is begun in a backward pass is there after all else that is queued without waiting for it.
    """

    global_rank, global_size = 0, 2

    compresses_gradients = False

    def __init__(self):
        self.advanced = self
        self.begun = []  # events on the device, at the start of each average that is early

    def gather(self, value, name):
        return [value]

    def all_gather(self, array):
        return np.stack([array, array])

    def compresses(self, array, timeout_s=0):
        return False

    def all_reduce(self, array, op, dest, timeout_s):
        assert op == "mean"
        if threading.current_thread() is not threading.main_thread():
            self.begun.append(torch.cuda.Event(enable_timing=True))
            self.begun[-1].record()
            keep_busy(8)
        return dest.copy_(array * 3)


def loss_of(x, weights, k):
    return (k + 1) * (Slow.apply(Slow.apply(x * weights[0]) * weights[1])).sum()


def test_what_is_queued_waits_for_what_it_needs(monkeypatch):
    """Gradients that are late, averages that are late, and an optimizer that is late; against a loop on the host.

    By the device's own clock each early average starts before the backward pass has ended.
    """
    from platoon_plugins.keras.backends import torch_gradients
    from platoon_plugins.keras.gradients import Batch

    monkeypatch.setattr(torch_gradients, "BUCKET_BYTES", 64)
    monkeypatch.setattr(torch_gradients, "BUCKET_S", 0)  # whatever the device takes for the calls that are watched
    values = np.random.default_rng(1).standard_normal((3, 1000))
    x, *starts = (torch.tensor(each, dtype=torch.float32, device="cuda") for each in values)
    weights = [torch.nn.Parameter(each) for each in starts]
    late, steps = Late(), []
    average = torch_gradients.TorchAverage(late)
    average.place(x.device)
    early_averages = average.watch_backward(weights, lambda: 4.0)
    average.attach("any", [np.zeros(1000, "f4")] * 2)
    for k in range(6):
        with early_averages.step():
            for weight in weights:
                weight.grad = None
            loss_of(x, weights, k).backward()
            over = torch.cuda.Event(enable_timing=True)
            over.record()
            gradients = average.average(Batch([weight.grad for weight in weights], 4.0, [True, True]))
            steps.append((late.begun, over))
            late.begun = []
        with torch.no_grad():
            keep_busy()
            for weight, gradient in zip(weights, gradients):
                weight -= 0.01 * gradient
    average.detach()
    torch.cuda.synchronize()
    early = [[event.elapsed_time(over) > 0 for event in begun] for begun, over in steps]
    assert early == [[], [], [], [True], [True], [True]]  # the bucket of the first weight never is early
    x, *right = (torch.tensor(each) for each in values)
    for k in range(6):
        right = [each.detach().requires_grad_() for each in right]
        loss_of(x, right, k).backward()
        right = [each.detach() - 0.01 * each.grad for each in right]
    for mine, wanted in zip(weights, right):
        np.testing.assert_allclose(mine.detach().cpu().numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "run_keras", [{"PLATOON_TEST_BUCKET_BYTES": AS_TENSORS["PLATOON_TEST_BUCKET_BYTES"]}], indirect=True
)
def test_two_workers_train_as_one_process_does(run_keras):
    """By NCCL where each has a device of its own, else by way of the host."""
    run_keras(
        script_path("torch_backward_two_workers_train_as_one_process_does"), devices=(DEVICES * 2)[:2]
    ).require_success()
