from blocks_preamble import DataStream, DistributedMonitoring, FinishAfter, IndexableDataset
from blocks_preamble import ParameterSync, Scale, SequentialScheme, SimpleExtension, T, loop, np
from blocks_preamble import rank, theano
from blocks.roles import PARAMETER, add_role
from platoon_plugins.blocks import LocalSGD

own = 1 + rank
w = theano.shared(np.zeros(64, "float32"), name="w")
add_role(w, PARAMETER)
cost = (w.sum() * T.matrix("features").mean()).copy(name="cost")
rows = IndexableDataset({"features": np.full((18, 2), -own, "float32")})


class Watch(SimpleExtension):
    def __init__(self):
        super().__init__(after_batch=True)

    def do(self, which_callback, *args):
        step = self.main_loop.status["iterations_done"]
        turn = 4 if step >= 6 else 0  # of the last round that is completed
        assert w.get_value().tolist() == [1.5 * turn + own * (step - turn)] * 64, (step, w.get_value())


one = DataStream(IndexableDataset({"features": np.ones((4, 2), "float32")}), iteration_scheme=SequentialScheme(4, 2))
validation = DistributedMonitoring([cost], one, prefix="valid", after_epoch=True)
extensions = [
    validation,
    ParameterSync(LocalSGD(overlap=0.5), every_n_batches=4),
    Watch(),
    FinishAfter(after_n_epochs=1),
]
main_loop = loop(cost, DataStream(rows, iteration_scheme=SequentialScheme(18, 2)), extensions, Scale(1.0))
main_loop.run()
assert main_loop.log.current_row["valid_cost"] == 64 * 1.5 * 9, main_loop.log.current_row
assert w.get_value().tolist() == [1.5 * 9] * 64, w.get_value()
