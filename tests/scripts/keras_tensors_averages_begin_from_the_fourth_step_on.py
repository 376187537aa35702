"""Those of the last layer before the gradients of the first one have come; and again in the next fit."""

from keras_preamble import *
from keras_tensors_order import *

model = dense(optimizer=DistributedOptimizer("sgd"))
for fit in range(2):
    train(model, rows=20)
    first, second, third, fourth, fifth, _ = steps()
    assert sorted(first) == list("0123"), first
    # Of four buckets the last one, with the kernel of the first layer, always follows the pass.
    calls = [step.count("call") for step in (second, third, fourth, fifth)]
    assert calls == [1, 1, 4 + 3, 1 + 3], (second, third, fourth, fifth)
    for early in (fourth[4:], fifth[1:]):
        assert early.index("call") < early.index("0"), early
same_everywhere(model)
