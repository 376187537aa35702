import sys

from blocks_preamble import DataStream, FinishAfter, IndexableDataset, ParameterSync, Scale, SequentialScheme
from blocks_preamble import SimpleExtension, T, loop, np, rank, theano

from blocks.roles import PARAMETER, add_role
from platoon_base.rules import parse_rule

rule, own = parse_rule(sys.argv[2]), 1 + rank
w = theano.shared(np.zeros(64, "float32"), name="w")  # four fragments of 16
add_role(w, PARAMETER)
cost = (w.sum() * T.matrix("features").mean()).copy(name="cost")
rows = IndexableDataset({"features": np.full((10, 2), -own, "float32")})
seen = []


class Watch(SimpleExtension):
    def __init__(self):
        super().__init__(after_epoch=True)

    def do(self, which_callback, *args):
        seen.append(w.get_value().tolist())


extensions = [ParameterSync(rule, after_epoch=True), Watch(), FinishAfter(after_n_epochs=3)]
loop(cost, DataStream(rows, iteration_scheme=SequentialScheme(10, 2)), extensions, Scale(1.0)).run()
assert seen == [[1.5 * 5 * epoch] * 64 for epoch in (1, 2, 3)], seen
