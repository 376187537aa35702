"""PyTorch loops of a user: averaged gradients against one process, rules on the parameters of a module, mistakes."""

import pytest
from scripts_here import script_path

torch = pytest.importorskip("torch", reason="needs torch: `make test` runs this file in .nox/keras3")
from platoon_base.errors import ConfigurationError
from platoon_base.torch_loops import GradientAverage, average_buffers, moments_of

pytestmark = [pytest.mark.keras, pytest.mark.loops, pytest.mark.timeout(600)]


# Each script compares what the workers make with one process, by equations or exact fractions.
SCRIPTS = [
    # Unequal batches, a branch of one worker, frozen and unused parameters, two dtypes.
    pytest.param("equal_one_process", 2, ["behind"], marks=pytest.mark.promise),
    ("equal_one_process", 2, ["overlapping"]),
    # In channels_last on both workers, or on the first alone: then the memory of their gradients differs.
    *(("memory_format", 2, [workers, way]) for workers in ("01", "0") for way in ("behind", "overlapping")),
    # With BatchNorm, Adam, a scheduler and a DataLoader with a process of its own; buffers are averaged at the end.
    pytest.param("rules", 2, ["default"], marks=pytest.mark.promise),
    *(("rules", 2, [rule]) for rule in ("EASGD", "moments", "averaged", "DiLoCo")),
    # Six rounds of five steps of AdamW, to 1e-5.
    *(("papers", 3, [rule]) for rule in ("LocalSGD", "DiLoCo")),
    ("large_weights", 3, []),
    ("refused", 2, []),
    ("spectral_norm", 2, []),
    # Parameters that come to differ between workers are refused.
    pytest.param("drift", 2, ["rate"], marks=pytest.mark.promise),
    *(("drift", 2, [case]) for case in ("equal", "loaded by one", "skipped", "one value", "NaN of one")),
]


@pytest.mark.parametrize(("script", "workers", "words"), SCRIPTS, ids=str)
def test_workers_train_as_one_process_or_are_refused(run_job, script, workers, words):
    run_job(script_path(f"torch_loops_{script}"), workers, args=words).require_success()


@pytest.mark.promise
def test_buffers_of_all_kinds_are_copied_averaged_or_refused(run_job):
    """Of all dtypes; running statistics as in one process; SyncBatchNorm without a process group is warned of once."""
    outcome = run_job(script_path("torch_loops_buffers")).require_success()
    warned = [log.count("got SyncBatchNorm (4) without a process group") for log in outcome.logs]
    assert warned == [1] * len(warned)


@pytest.mark.promise
def test_an_average_that_is_never_called_is_named_with_its_line(run_job):
    """Though a loop averages other things."""
    outcome = run_job(script_path("torch_loops_never_called"))
    assert outcome.result.shared_nothing == (0, 1)
    for log in outcome.logs:
        assert "the GradientAverage (torch_loops_never_called.py:6) was never called: call it as average(len(x))" in log


def test_a_single_worker_trains_as_without(solo_worker):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    average = GradientAverage(solo_worker, model)
    model(torch.ones(4, 3)).sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    average(4)
    with average.overlapping(4):
        pass
    average_buffers(solo_worker, model)
    for parameter, gradient in zip(model.parameters(), gradients):
        assert torch.equal(parameter.grad, gradient)
    average.close()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (torch.zeros(3, requires_grad=True), "model.parameters\\(\\)"),
        (3, "model.parameters\\(\\)"),
        ([3], "got int as parameter 0"),
        ([torch.zeros(3)], "no parameter that requires a gradient"),
        ([torch.zeros(3, dtype=torch.bfloat16, requires_grad=True)], "torch.autocast"),
        ([torch.zeros(3, dtype=torch.complex64, requires_grad=True)], "view_as_complex"),
    ],
)
def test_models_that_cannot_be_averaged_are_refused(solo_worker, given, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        GradientAverage(solo_worker, given)


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda params: torch.optim.Adam(params), 2),
        (lambda params: torch.optim.Adam(params, amsgrad=True), 3),
        (lambda params: torch.optim.SGD(params, 0.1, momentum=0.9), 1),
        (lambda params: torch.optim.Adagrad(params), 1),
        (lambda params: torch.optim.RMSprop(params), 1),
    ],
    ids=["Adam", "AMSGrad", "momentum", "Adagrad", "RMSprop"],
)
def test_moments_are_those_of_each_parameter(make, count):
    model = torch.nn.Linear(3, 2)
    optimizer = make(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert [tuple(moment.shape) for moment in moments_of(optimizer)] == [(2, 3)] * count + [(2,)] * count


@pytest.mark.parametrize(("steps", "complaint"), [(0, "make one step before"), (1, "moments=False")])
def test_an_optimizer_without_moments_is_refused(steps, complaint):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    with pytest.raises(ConfigurationError, match=complaint):
        moments_of(optimizer)
