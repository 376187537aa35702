from blocks_preamble import DataStream, FinishAfter, IndexableDataset, ParameterSync, Scale, SequentialScheme
from blocks_preamble import SimpleExtension, T, loop, np, rank, theano

from blocks.roles import PARAMETER, add_role
from platoon_plugins.blocks import LocalSGD

own = 1 + rank
w = theano.shared(np.zeros(3, "float32"), name="w")
add_role(w, PARAMETER)
cost = (w.sum() * T.matrix("features").mean()).copy(name="cost")
rows = IndexableDataset({"features": np.full((18, 2), -own, "float32")})


class Watch(SimpleExtension):
    def __init__(self):
        super().__init__(after_batch=True)
        self.found = []

    def do(self, which_callback, *args):
        self.found.append(float(w.get_value()[0]))


watch = Watch()
extensions = [ParameterSync(LocalSGD(overlap=0.5), every_n_batches=4), watch, FinishAfter(after_n_epochs=1)]
loop(cost, DataStream(rows, iteration_scheme=SequentialScheme(18, 2)), extensions, Scale(1.0)).run()
# After 4 steps the workers contribute 4 and 8, and after 6 they take over the mean, 6, and go on from there.
assert watch.found == [own, 2 * own, 3 * own, 4 * own, 5 * own, *(6 + n * own for n in (2, 3, 4, 5))], watch.found
# What came after the 4 steps: 5 by each worker, 7.5 on average, on top of 6.
assert w.get_value().tolist() == [13.5] * 3, w.get_value()
