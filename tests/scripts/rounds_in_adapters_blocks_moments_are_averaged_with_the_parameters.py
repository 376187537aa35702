from blocks_preamble import FinishAfter, Momentum, ParameterSync, everyones, loop, network, np
from blocks_preamble import shard_stream, size, stream, values
from platoon_plugins.blocks import LocalSGD


def moments(main_loop):
    """Return the step rule's velocities."""
    parameters = main_loop.algorithm.parameters
    shapes = [p.get_value().shape for p in parameters]
    state = [variable for variable, _ in main_loop.algorithm.step_rule_updates]
    return np.concatenate([v.get_value().ravel() for v in state if v.get_value().shape in shapes])


def trained(extensions, train):
    cost, _ = network(seed=1)
    main_loop = loop(cost, train, [*extensions, FinishAfter(after_n_epochs=2)], Momentum(0.1, 0.9))
    main_loop.run()
    return main_loop


alone = trained([], stream(48, batch=8 * size))
together = trained([ParameterSync(LocalSGD(moments=True), every_n_batches=1)], shard_stream(stream(48)))
assert abs(moments(alone)).max() > 1e-3
np.testing.assert_allclose(moments(together), moments(alone), atol=1e-5)
np.testing.assert_allclose(values(together), values(alone), atol=1e-5)
own = everyones(moments(trained([ParameterSync(LocalSGD(), every_n_batches=1)], shard_stream(stream(48)))))
assert (own[0] != own[1]).any(), "without moments=True each worker keeps its own"
