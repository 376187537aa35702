import numpy as np

from blocks_preamble import Checkpoint, DistributedMonitoring, EASGD, FinishAfter, Look, ParameterSync, Scale
from blocks_preamble import StopTogether, everyones, loop, network, rank, shard_stream, stream, tmp, worker

from blocks.extensions.predicates import OnLogRecord
from blocks.extensions.training import SharedVariableModifier, TrackTheBest
from blocks.serialization import load_parameters

cost, error = network()
rule = Scale(0.2)
centers, best, costs = [], [], []


def look(main_loop):
    row = main_loop.log.current_row
    with worker.center_params():
        centers.append([p.get_value() for p in main_loop.model.get_parameter_dict().values()])
    costs.append(float(row["valid_cost"]))
    best.append(row.get("valid_cost_best_so_far", False))
    worker.barrier("looked")  # nobody moves the center before


saving = Checkpoint(tmp + "/last.tar", after_training=False, save_main_loop=False)
saving.add_condition(["after_epoch"], OnLogRecord("valid_cost_best_so_far"), (tmp + "/best.tar",))
extensions = [
    DistributedMonitoring([cost], stream(24, seed=1), prefix="valid", after_epoch=True),
    TrackTheBest("valid_cost"),
    saving,
    Look(after_epoch=look),
    FinishAfter(after_n_epochs=3),
    SharedVariableModifier(rule.learning_rate, lambda n: np.float32(0.2 if n < 8 else -0.2)),
    ParameterSync(EASGD(alpha=0.3), every_n_batches=2),
    StopTogether(),
]
main_loop = loop(cost, shard_stream(stream(64), uneven="drop"), extensions, rule)
main_loop.run()
assert costs[0] > costs[1] < costs[2] and best == [True, True, False], (costs, best)
assert (everyones(np.array(costs)) == costs).all() and (everyones(np.array(best, int)) == best).all()
if rank == 0:
    with open(tmp + "/best.tar", "rb") as file:
        saved = load_parameters(file)
    for name, expected in zip(main_loop.model.get_parameter_dict(), centers[1]):
        np.testing.assert_array_equal(saved[name], expected)
