import sys

import numpy as np

from lasagne_preamble import T, X, evaluate, finish_training, rank, sync_updates, theano

from platoon_base.rules import parse_rule

rule, own = parse_rule(sys.argv[2]), 1 + rank
w = theano.shared(np.zeros(64, "f4"), name="w")  # four fragments of 16
updates = sync_updates({w: w + np.float32(own)}, [w], rule, every_n_batches=8)
train = theano.function([], T.sum(w), updates=updates)
for step in range(1, 10):
    train()
    for fragment, value in enumerate(w.get_value()[::16].tolist()):
        turn = 2 * (fragment + 1)
        over = step >= turn + (2 if rule.overlap else 0)
        assert value == (1.5 * turn + own * (step - turn) if over else own * step), (step, fragment, value)
assert evaluate(lambda rows: list(map(float, w.get_value())), X, batch_size=len(X)) == [1.5 * 9] * 64
for _ in range(2):
    train()
finish_training()
assert w.get_value().tolist() == [1.5 * 11] * 64, w.get_value()
