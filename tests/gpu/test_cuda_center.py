"""The center in the memory of GPUs for Keras 3 on torch and JAX, without pygpu, against NumPy and the host's.

Two workers compute on two GPUs where there are two, or else on one. Without a GPU the same center runs with the
processor as its device, by arrays that are changed in place, as torch's, by copies, and by JAX's.
"""

import numpy as np
import pytest
from cuda_center_jobs import BY_JAX, COMPUTES, on_gpus, runner
from rule_table import ON_DEVICES

from platoon_base.checkpoints.files import CheckpointFolder, read_checkpoint
from platoon_base.checkpoints.writer import Saving

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=["torch", "jax", BY_JAX])
def run_keras(run_job, request):
    """Run a script with Keras on GPUs, or on the processor."""
    return runner(run_job, request)


@pytest.fixture(params=["in place", "copies", "torch", "jax", BY_JAX])
def run_on_cuda(run_job, request):
    """Run a script with parameters on GPUs, or on the processor."""
    return runner(run_job, request)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", ON_DEVICES, ids=str)
def test_the_rules_are_their_equations_bit_by_bit(run_on_cuda, rule, dtype):
    """The workers take turns, under locks and without, so NumPy can follow."""
    run_on_cuda(
        f"""
        rule, dtype = rules.{rule}, {dtype!r}
        starts = draw(0, ((), (3, 5), (100_003,), (0, 4), (256, 300)), dtype=dtype)
        variables = [on_device(a, dtype) for a in starts]
        worker.init_shared_params(variables, rule)
        require_on_device()
        worker.barrier()
        pairs = [(Replay(rule, starts), variables)]
        take_turns(worker, pairs, advance, 6, locked=lambda step: step % 2 == 0)
        own = [variable.get_value() for variable in variables]
        with worker.center_params():
            require_validated(pairs)
        for variable, value in zip(variables, own):
            assert np.array_equal(variable.get_value(), value), "own"
        worker.barrier()
        """
    ).require_success()


@pytest.mark.promise
def test_moments_have_a_rule_of_their_own(run_on_cuda):
    """Parameters by `AveragedEASGD`, moments by `EASGD` with the same alpha; validated is the average of the one."""
    run_on_cuda(
        """
        starts = draw(0, ((3, 5), (100_003,), (256, 300)))
        variables, moments = ([on_device(a) for a in starts] for _ in range(2))
        worker.init_shared_params(variables, rules.AveragedEASGD(warmup=3), moments=moments)
        require_on_device()
        worker.barrier()
        pairs = [(Replay(rules.AveragedEASGD(warmup=3), starts), variables), (Replay(EASGD(), starts), moments)]
        take_turns(worker, pairs, advance, 5)
        with worker.center_params():
            require_validated(pairs)
        worker.barrier()
        worker.copy_to_local()
        require_validated(pairs)
        worker.barrier()
        """
    ).require_success()


@pytest.fixture(params=["in place", "copies", "torch"])
def run_in_any_order(run_job, request):
    """Run a script with parameters whose memory may be in another order than C order."""
    return runner(run_job, request)


@pytest.mark.parametrize("orders", ["FF", "FC", "CF"])
def test_memory_in_any_order_stays_on_the_device(run_in_any_order, orders, tmp_path):
    """As of `torch.channels_last`: the same order on all workers, or the second copies to that of the first."""
    folder = CheckpointFolder(tmp_path / "kept")
    outcome = run_in_any_order(
        f"""
        order, dtype = {orders!r}[rank], "float32"
        starts = draw(0, ((), (7, 5), (40, 50, 60), (8, 3, 2, 2)), dtype=dtype)
        if rank:
            worker.barrier()
        variables = [on_device(a, dtype, order) for a in starts]
        worker.init_shared_params(variables, EASGD())
        if not rank:
            worker.barrier()
        require_on_device()
        worker.barrier()
        pairs = [(Replay(EASGD(), starts), variables)]
        take_turns(worker, pairs, advance, 4, locked=lambda step: step % 2 == 0)
        with worker.center_params():
            require_validated(pairs)
        worker.barrier()
        if not rank:
            np.savez(sys.argv[1] + "/center.npz", *pairs[0][0].validated)
        """,
        saving=Saving(folder, 1000.0),
    ).require_success()
    saved, expected = read_checkpoint(folder.newest()[0]).center, np.load(tmp_path / "center.npz")
    for array, center in zip(saved, expected.values()):
        np.testing.assert_allclose(array, center, rtol=1e-6)
    folder.close()
    assert ["copies" in log for log in outcome.logs] == [False, orders[0] != orders[1]]


@pytest.mark.parametrize(("shape", "at", "element"), [((4, 5), (1, 2), 7), ((), (), 0)])
def test_the_element_that_is_not_finite_is_named_by_its_index_in_c_order(run_in_any_order, shape, at, element):
    run_in_any_order(
        f"""
        x = on_device(np.zeros({shape}), "float32", "F")
        worker.init_shared_params([x], EASGD())
        worker.barrier()
        values = np.zeros({shape}, "float32")
        values[{at}] = np.nan
        if rank == 0:
            advance([x], [values])
            with pytest.raises(NonFiniteError, match="element {element} of"):
                for _ in range(100):
                    worker.sync_params()
                    x.get_value()
        worker.barrier()
        """
    ).require_success()


@pytest.mark.parametrize("locked", [True, False])
def test_no_update_is_lost_when_all_synchronize_at_once(run_on_cuda, locked):
    """With ASGD the center is the sum of everybody's progress, exactly, in whole numbers; nobody waits for the GPU."""
    run_on_cuda(
        f"""
        x = on_device(np.zeros(1_000_001))
        worker.init_shared_params([x], ASGD())
        worker.barrier()
        for step in range(200):
            advance([x], [np.ones(1_000_001, "float32")])
            worker.sync_params({locked})
        x.get_value()
        worker.barrier()
        worker.copy_to_local()
        found = x.get_value()
        worker.barrier()
        assert (found == 200 * size).all(), (found.min(), found.max())
        """
    ).require_success()


def test_the_center_survives_those_who_own_it_with_its_momentum(run_on_cuda):
    """Rank 0 is killed; rank 1 goes on bit by bit as if the other's partition were still there."""
    outcome = run_on_cuda(
        """
        rule = CenterMomentum(0.3, 0.9, 1.5)
        starts = draw(0)
        variables = [on_device(a) for a in starts]
        worker.init_shared_params(variables, rule)
        worker.barrier()
        replay = Replay(rule, starts)
        take_turns(worker, [(replay, variables)], advance, 3)
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        until(lambda: living() == 1)
        with partitions_of(variables) as directory:
            def all_are_mine():
                worker.copy_to_local()  # the partition of the dead is made anew meanwhile
                return all(directory.entry(partition).owner == rank for partition in range(directory.workers))
            until(all_are_mine, 20)
        worker.copy_to_local()
        replay.take_over(rank)
        for step in range(4):
            for variable, x in zip(variables, replay.locals[rank]):
                assert np.array_equal(variable.get_value(), x), step
            replay.sync(rank, draw(step), among=1)
            advance(variables, draw(step))
            worker.sync_params()
        worker.report({"done": 1})
        """
    )
    assert outcome.reported == {"done": 1}, outcome.logs


def test_a_worker_that_is_killed_goes_on_with_the_center(run_on_cuda):
    """What the center had of it is not lost, and the worker that stands in for it counts on from there.

    The other one has the memory of the dead open, and has made its partition anew when the stand-in comes.
    """
    outcome = run_on_cuda(
        """
        x = on_device(np.zeros(300_000))
        made_anew, done = os.path.join(sys.argv[1], "made anew"), os.path.join(sys.argv[1], "done")
        if worker.late:
            until(lambda: os.path.exists(made_anew))
        worker.init_shared_params([x], ASGD())
        worker.sync_params()  # opens what the other has made
        if not worker.late:
            worker.barrier("all have both partitions")
        for step in range(worker.resume_at.steps, 40):
            advance([x], [np.ones(300_000, "float32")])
            worker.progress(steps=1)
            worker.sync_params()
            x.get_value()
            if step == 20 and rank == 1 and not worker.late:
                os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0:
            with partitions_of([x]) as directory:
                def all_are_mine():
                    worker.sync_params()
                    return all(directory.entry(partition).owner == rank for partition in range(directory.workers))
                until(all_are_mine)
            open(made_anew, "w").close()
        else:
            open(done, "w").close()
        def is_done():
            worker.sync_params()
            return os.path.exists(done)
        until(is_done, 100)
        worker.copy_to_local()
        worker.report({f"lowest {rank}": float(x.get_value().min()), f"highest {rank}": float(x.get_value().max())})
        """,
        max_restarts=1,
    ).require_success()
    assert outcome.result.restarts == 1
    assert set(outcome.reported.values()) == {80.0}, outcome.reported


@pytest.mark.promise
def test_the_center_is_saved_when_it_is_released(run_on_cuda, tmp_path):
    folder = CheckpointFolder(tmp_path / "kept")
    job = run_on_cuda(
        """
        a = on_device(np.zeros(70_000))
        worker.init_shared_params([a], ASGD())
        for step in range(20):
            advance([a], [np.ones(70_000, "float32")])
            worker.sync_params()
        worker.release_shared_params()
        """,
        saving=Saving(folder, 1000.0),
    ).require_success()
    assert not job.result.checkpoints.unsaved
    (center,) = read_checkpoint(folder.newest()[0]).center
    assert (center == 40).all()
    folder.close()


@pytest.mark.parametrize("end", ["", "worker.release_shared_params()"], ids=["exit", "release"])
def test_the_last_worker_saves_what_a_killed_one_owned(run_on_cuda, tmp_path, end):
    """Rank 1 does not synchronize between the death and its end, so only its end can take over the partition."""
    folder = CheckpointFolder(tmp_path / "kept")
    job = run_on_cuda(
        f"""
        a = on_device(np.zeros(70_000))
        worker.init_shared_params([a], ASGD())
        for step in range(20):
            advance([a], [np.ones(70_000, "float32")])
            worker.sync_params()
        a.get_value()
        worker.barrier()
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        until(lambda: living() == 1)
        {end}
        """,
        saving=Saving(folder, 1000.0),
    )
    assert not job.result.checkpoints.unsaved, job.logs
    (center,) = read_checkpoint(folder.newest()[0]).center
    assert (center == 40).all()
    folder.close()


@pytest.mark.parametrize("policy", ["raise", "skip", "restore"])
def test_what_is_not_finite_stays_out(run_on_cuda, policy):
    run_on_cuda(
        f"""
        a = on_device(np.zeros(70_000))
        worker.init_shared_params([a], EASGD(0.5), on_nonfinite={policy!r})
        worker.barrier()
        if rank == 1:
            values = np.full(70_000, 2.0, "float32")
            values[[5, 40_000]] = np.nan, np.inf
            a.set_value(values)
            worker.progress(steps=3)
            told = 0
            for turn in range(3):  # a center on devices tells of it at a later synchronization
                try:
                    worker.sync_params()
                except NonFiniteError as exc:
                    told += 1
                    assert "rank 1, step 3: element 5 of variable" in str(exc), exc
                a.get_value()
            assert bool(told) == ({policy!r} == "raise"), told
            if {policy!r} == "restore":
                worker.sync_params()
                assert np.isfinite(a.get_value()).all()
        worker.barrier()
        with worker.center_params():
            center = a.get_value()
        assert (center[[5, 40_000]] == 0).all(), center[[5, 40_000]]
        others = np.delete(center, [5, 40_000])
        assert (others == others[0]).all() and 1 <= others[0] <= 2, others[0]
        worker.barrier()
        """
    ).require_success()


def test_the_memory_of_a_center_that_is_released_serves_the_next(run_on_cuda):
    """It cannot be freed while others may have it open, and a script may train many times."""
    run_on_cuda(
        """
        from platoon_base.devices.runtime import runtime_of
        a = on_device(np.zeros(70_000))
        spare = runtime_of(a.on_device().context).driver.spare
        for turn in range(3):
            worker.init_shared_params([a], CenterMomentum(0.5, 0.9, 1.0))
            require_on_device()
            assert sum(map(len, spare.values())) == 0, (turn, spare)
            before = a.get_value()
            worker.sync_params()  # at the center, without momentum: that of the center before is gone
            assert np.array_equal(a.get_value(), before), turn
            worker.barrier()
            if rank == turn % size:
                advance([a], [np.ones(70_000, "float32")])
                worker.sync_params()
            worker.barrier()
            worker.copy_to_local()
            worker.release_shared_params()
            assert sum(map(len, spare.values())) == 1, (turn, spare)
        assert a.get_value()[0] != 0
        """
    ).require_success()


FIT = """
class Meet(keras.callbacks.Callback):
    '''All go on from the center that has everybody's progress: so the order of the synchronizations does not matter.'''

    def on_train_batch_begin(self, batch, logs=None):
        if sys.argv[2] == "device":
            require_on_device()
        else:
            len(worker.center_arrays)
        worker.barrier("all have synchronized")
        backend.attach(self.model)
        worker.copy_to_local()
        worker.barrier("all go on")

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(300, "tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse")
rng = np.random.default_rng(rank)
x = rng.standard_normal((256, 20)).astype("float32")
y = x @ np.linspace(-1, 1, 20, dtype="float32")[:, None]
"""


def test_a_fit_gives_what_it_gives_with_the_center_on_the_host(run_keras, tmp_path):
    """By ASGD, batch by batch, so that both have the same course but for rounding."""
    script = (
        FIT
        + """
fit = model.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0,
                callbacks=distribute([Meet()], rule=ASGD(), every_n_batches=1))
assert fit.history["loss"][-1] < fit.history["loss"][0]
if rank == 0:
    np.savez(os.path.join(sys.argv[1], f"{sys.argv[2]}.npz"), *model.get_weights())
"""
    )
    for center in ("device", "host"):
        run_keras(script, center, args=[center]).require_success()
    with np.load(tmp_path / "device.npz") as ours, np.load(tmp_path / "host.npz") as expected:
        for name in expected:
            np.testing.assert_allclose(ours[name], expected[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("framework", COMPUTES)
def test_without_nvrtc_the_center_is_on_the_host_and_a_line_says_so(run_job, framework):
    outcome = on_gpus(run_job, framework)(
        """
        sys.modules["cuda.bindings"] = None
        a = on_device(np.ones(10))
        worker.init_shared_params([a], EASGD())
        len(worker.center_arrays)
        worker.barrier()
        """
    ).require_success()
    assert all("pip install 'platoon-plugins[cuda]'" in log for log in outcome.logs), outcome.logs


def test_a_center_that_is_closed_is_freed_at_once(run_on_cuda):
    """Its memory on the device goes with its last reference, not when Python looks for circles."""
    run_on_cuda(
        """
        import gc, weakref
        from platoon_base.centers.device import DeviceCenter

        x = on_device(np.zeros(1000))
        worker.init_shared_params([x], CenterMomentum())
        worker.sync_params()
        gc.collect()
        gc.disable()
        (center,) = [each for each in gc.get_objects() if type(each) is DeviceCenter]
        center = weakref.ref(center)
        worker.release_shared_params()
        assert center() is None, gc.get_referrers(center())
        """
    ).require_success()


def test_a_center_is_closed_also_if_its_device_fails(run_on_cuda):
    run_on_cuda(
        """
        import gc
        from platoon_base.centers.device import DeviceCenter
        from platoon_base.centers.device_directory import DeviceDirectory

        def failing(self):
            raise RuntimeError("the device is gone")

        x = on_device(np.zeros(1000))
        worker.init_shared_params([x], CenterMomentum())
        worker.sync_params()
        worker.barrier()
        (directory,) = [each for each in gc.get_objects() if type(each) is DeviceDirectory]
        DeviceCenter.settle = failing
        with pytest.raises(RuntimeError, match="the device is gone"):
            worker.close()
        assert directory.closed
        """
    ).require_success()


def test_checksums_on_a_device_are_those_of_the_host(run_on_cuda):
    run_on_cuda(
        """
        from platoon_base.worker import checksums

        class OnHost:
            def __init__(self, value):
                self.get_value = lambda borrow: value

        values = draw(3, ((), (1,), (3, 5), (100_003,), (0, 4), (256, 300)))
        variables = [on_device(value) for value in values]
        found = checksums(variables)
        assert found == checksums([OnHost(value) for value in values])
        for variable, value in zip(variables, values):  # They are read, not changed.
            assert np.array_equal(variable.get_value(), value)
        variables[3].set_value(values[3] + (np.arange(100_003) == 99_999).astype(values[3].dtype))
        changed = checksums(variables)
        assert [now != before for now, before in zip(changed, found)] == [False, False, False, True, False, False]
        """
    ).require_success()
