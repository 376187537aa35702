"""Torch's tensors in collectives, and gradients that are averaged as tensors where they are; here on the CPU.

`gpu/test_torch_tensors.py` is about CUDA devices. Tests of other files run with such gradients too, see `both_ways`
and `on_devices`.
"""

import gc
import weakref

import pytest
from keras_here import AS_TENSORS, keras
from scripts_here import script_path

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test` runs this file in .nox/keras3")

pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(600),
    pytest.mark.skipif(keras.backend.backend() != "torch", reason="about torch: run it with KERAS_BACKEND=torch"),
]


def test_collectives_take_tensors(run_job):
    run_job(script_path("keras_tensors_collectives_take_tensors")).require_success()


in_the_backward_pass = pytest.mark.parametrize("run_keras", [AS_TENSORS], indirect=True)


@in_the_backward_pass
@pytest.mark.parametrize(
    "script",
    [
        "averages_begin_from_the_fourth_step_on",
        "layers_that_a_callback_freezes_or_lets_train_again",
        "a_train_step_of_ones_own_averages_behind_it",
        "gradients_that_are_changed_behind_it_are_averaged_or_refused",
    ],
)
def test_in_the_backward_pass(run_keras, script):
    run_keras(script_path(f"keras_tensors_{script}")).require_success()


# Notes the order of what happens in steps: gradients that have come, and buckets that were filled for a call each.


def test_hooks_of_torch_keep_nothing_and_end_with_a_step_that_raises():
    from platoon_base.torch_loops import EarlyAverages

    weight = torch.nn.Parameter(torch.ones(3))

    def backward():
        weight.grad = None
        (weight * 2).sum().backward()

    begun, averaged = [], []
    fill = lambda number, gradients: begun.append(number)  # noqa: E731
    early = EarlyAverages([weight], fill, averaged.append, torch.device("cpu"), "")
    early.expect([[0], []])
    with early.step():
        backward()
        assert begun == [0]
        assert early.take([weight.grad]) == 1
        early.wait()
        assert averaged == [0]
    try:
        with early.step():
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    with early.step():
        backward()
    assert begun == [0]

    early = EarlyAverages([weight], lambda *_: None, lambda _: None, torch.device("cpu"), "")
    kept = weakref.ref(early)
    del early
    gc.collect()
    assert kept() is None
    backward()


@in_the_backward_pass
def test_a_worker_that_dies_in_its_backward_pass_is_named(run_keras):
    """Within seconds, by the one whose averages have begun."""
    outcome = run_keras(script_path("keras_tensors_a_worker_that_dies_in_its_backward_pass"))
    told = outcome.reported
    assert told["told"].startswith("WorkerLostError"), outcome.logs
    assert "rank 1" in told["told"], told
    assert told["took"] < 30, told


def test_sparse_gradients_are_refused_before_training_where_a_layer_tells_of_them(run_keras):
    """Within layers and models, and not where they do no harm: frozen, or with a rule."""
    run_keras(script_path("keras_tensors_sparse_gradients_are_refused_before_training")).require_success()
