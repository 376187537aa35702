from blocks_preamble import DataStream, FinishAfter, IndexableDataset, ParameterSync, Scale, SequentialScheme
from blocks_preamble import StopTogether, T, everyones, loop, np, rank, theano

from blocks.roles import PARAMETER, add_role
from platoon_plugins.blocks import LocalSGD

w = theano.shared(np.zeros(3, "float32"), name="w")
add_role(w, PARAMETER)
cost = (w.sum() * T.matrix("features").mean()).copy(name="cost")
rows = 2 * (8 - rank)  # a round more for rank 0 in each epoch, which ends without an evaluation
data = DataStream(
    IndexableDataset({"features": np.full((rows, 2), -1, "float32")}),
    iteration_scheme=SequentialScheme(rows, 2),
)
extensions = [ParameterSync(LocalSGD(overlap=0.5), every_n_batches=4), StopTogether(), FinishAfter(after_n_epochs=3)]
loop(cost, data, extensions, Scale(1.0)).run()
assert (everyones(w.get_value()) == w.get_value()).all()
