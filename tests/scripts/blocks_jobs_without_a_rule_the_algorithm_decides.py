"""The other worker names the rule; another one is refused. With averaged gradients triggers have no effect."""

from blocks_preamble import *
from platoon_base.worker.shared_parameters import SharedParameters

calls = []
original = SharedParameters.sync
SharedParameters.sync = lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs)
for step_rule, rule, triggers, count in (
    (Scale(0.1), CenterMomentum(), dict(every_n_batches=2), 3),
    (AllReduceGradients(Scale(0.1)), None, {}, 0),
):
    together = ParameterSync(rule, **triggers) if rank else ParameterSync(every_n_batches=2)
    extensions = [together, FinishAfter(after_n_batches=4)]
    main_loop = trained(network(seed=1 + rank)[0], shard_stream(stream(64)), extensions, step_rule)
    same_everywhere(main_loop)
    assert len(calls) == count, calls  # the end of training synchronizes once more
    calls.clear()
