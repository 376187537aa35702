import numpy as np

from blocks_preamble import AllReduceGradients, CompositeRule, FinishAfter, Momentum, ParameterSync, everyones, loop
from blocks_preamble import network, shard_stream, stream, values

ends = []
momentum = Momentum(0.1, 0.5)
for rule in (AllReduceGradients(momentum), CompositeRule([AllReduceGradients(), momentum])):
    extensions = [ParameterSync(), FinishAfter(after_n_epochs=1)]
    main_loop = loop(network()[0], shard_stream(stream(64)), extensions, rule)
    main_loop.run()
    ends.append(values(main_loop))
np.testing.assert_array_equal(*ends)
assert (everyones(ends[0]) == ends[0]).all()
