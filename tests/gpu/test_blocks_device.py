"""Main loops whose parameters are on devices: CUDA where there are two, or else OpenCL on the CPU."""

import pytest
from needing import require

require("blocks.main_loop")

from devices_here import DEVICES, WHY_NOT

if len(DEVICES) < 2:
    pytest.skip("no devices: run `make setup` on Debian 12, which installs pygpu and OpenCL", allow_module_level=True)

pytestmark = pytest.mark.blocks

# Element by element: OpenCL on the CPU has no BLAS, and Theano's softmax has a kernel for CUDA only.
PLAIN = """
from blocks.roles import PARAMETER, add_role

def plain(seed=1):
    x, y = T.matrix("features"), T.lmatrix("targets")
    rng = np.random.RandomState(seed)
    w, b = (theano.shared(rng.normal(size=6).astype("float32"), name=name) for name in "wb")
    for parameter in (w, b):
        add_role(parameter, PARAMETER)
    return ((T.tanh(x * w + b) - y.flatten()[:, None].astype("float32") / 2) ** 2).mean().copy(name="cost")
"""
OPTIONS = {"devices": DEVICES[:2], "center": "host" if WHY_NOT else "device"}


@pytest.mark.slow
def test_asynchronous_training_on_devices(run_blocks):
    """Values that count are those of the center, in the log, in what is saved and at the end."""
    run_blocks(
        PLAIN
        + """
cost = plain(seed=1 + rank)
assert "gpuarray" in type(ComputationGraph(cost).parameters[0].type).__module__
monitoring = DistributedMonitoring([cost], stream(45, seed=1), prefix="valid")
saving = Checkpoint(tmp + "/saved.tar", save_main_loop=False)
extensions = [ParameterSync(EASGD(), every_n_batches=2), monitoring, saving, FinishAfter(after_n_epochs=3)]
main_loop = trained(cost, shard_stream(stream(96), uneven="drop"), extensions)
same_everywhere(main_loop)
rows = [float(main_loop.log[row]["valid_cost"]) for row in (0, *main_loop.status["_epoch_ends"])]
assert rows[-1] < rows[0]
assert (everyones(np.array(rows)) == rows).all()
if rank == 0:
    with open(tmp + "/saved.tar", "rb") as file:
        parameters = load_parameters(file)
    for name, shared in main_loop.model.get_parameter_dict().items():
        np.testing.assert_array_equal(parameters[name], shared.get_value())
""",
        **OPTIONS,
    ).require_success()


@pytest.mark.slow
def test_averaged_gradients_on_devices_go_on_from_a_pickled_main_loop(run_blocks):
    script = (
        PLAIN
        + """
from platoon_base.theano_ops.gpu import GpuAllReduce

def train(batches, rule, *extensions):
    return trained(plain(), batches, [*extensions, FinishAfter(after_n_batches=12)], rule)

if len(sys.argv) > 2:
    with open(tmp + "/loop.tar", "rb") as file:
        main_loop = load(file)
    main_loop.run()
else:
    saving = Checkpoint(tmp + "/loop.tar", after_n_batches=5, after_training=False)
    rule = CompositeRule([AllReduceGradients(), StepClipping(0.5), Momentum(0.2, 0.9)])
    main_loop = train(shard_stream(stream(16 * 16)), rule, ParameterSync(None), saving)
    alone = train(stream(16 * 16, batch=16), CompositeRule([StepClipping(0.5), Momentum(0.2, 0.9)]))
    np.save(f"{tmp}/alone{rank}.npy", values(alone))
nodes = main_loop.algorithm._function.maker.fgraph.toposort()
assert sum(isinstance(node.op, GpuAllReduce) for node in nodes) == 1
assert main_loop.status["iterations_done"] == 12
np.testing.assert_allclose(values(main_loop), np.load(f"{tmp}/alone{rank}.npy"), rtol=0, atol=1e-5)
"""
    )
    run_blocks(script, **OPTIONS).require_success()
    run_blocks(script, args=["resume"], **OPTIONS).require_success()
