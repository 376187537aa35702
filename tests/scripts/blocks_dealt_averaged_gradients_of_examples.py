from blocks_preamble import *
from blocks_dealt_model import *


def train(stream, rule, *extensions):
    main_loop = trained(network()[0], stream, [*extensions, FinishAfter(after_n_epochs=2)], rule)
    return values(main_loop)


alone = train(examples(80, 8 * size), Scale(0.5))
together = train(shard_stream(examples(80), uneven="drop"), AllReduceGradients(Scale(0.5)), ParameterSync(None))
assert abs(together - alone).max() < 1e-5
assert (everyones(together) == together).all()
