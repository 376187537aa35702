from blocks_preamble import AllReduceGradients, CenterMomentum, FinishAfter, ParameterSync, Scale, everyones, loop
from blocks_preamble import network, rank, shard_stream, stream, values
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
    main_loop = loop(network(seed=1 + rank)[0], shard_stream(stream(64)), extensions, step_rule)
    main_loop.run()
    assert (everyones(values(main_loop)) == values(main_loop)).all()
    assert len(calls) == count, calls  # the end of training synchronizes once more
    calls.clear()
