"""`prepare`, which makes a main loop that was written for one process train on several workers."""

from __future__ import annotations

from typing import Any

from blocks.extensions import TrainingExtension
from blocks.extensions.monitoring import DataStreamMonitoring, TrainingDataMonitoring

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.rules import Rule
from platoon_plugins.blocks.data import shard_stream
from platoon_plugins.blocks.evaluation import DistributedMonitoring, DistributedTrainingMonitoring
from platoon_plugins.blocks.extensions import LEADER_ONLY
from platoon_plugins.blocks.gradients import average_gradients_of, averages_gradients, has_averaging_rule
from platoon_plugins.blocks.stopping import StopTogether
from platoon_plugins.blocks.streams import is_broadcast, is_sharded
from platoon_plugins.blocks.sync import ParameterSync

# Triggers that all workers reach equally often.
_AT_ENDS = {"before_first_epoch", "after_epoch", "after_training"}


def prepare(
    main_loop: Any,
    mode: str | None = None,
    *,
    strategy: Rule | None = None,
    sync_every: int | None = None,
    policy: str = "any",
    leader_only: Any = (),
    average: bool | None = None,
    worker: Worker | None = None,
) -> Any:
    """Give a main loop the stream and the extensions to train one model on several workers.

    - `shard_stream` divides the stream, unless it is divided already. With averaged gradients,
      batches that cannot be divided evenly are dropped.
    - `ParameterSync` and `StopTogether` are added where they are missing.
    - `DataStreamMonitoring` becomes `DistributedMonitoring`, with the same records on all workers.
      `TrainingDataMonitoring` becomes `DistributedTrainingMonitoring` with averaged gradients, or
      if it records at the ends of epochs only. Subclasses stay as they are.

    Call it on each worker before ``run``. It returns the same main loop, unchanged under plain
    ``python``.

    Parameters
    ----------
    main_loop : MainLoop
    mode : {"async", "sync"}, optional
        "async" synchronizes each worker with a common center; "sync" averages the gradients of each
        step. The default follows the algorithm. With "sync" a `GradientDescent` that is not
        initialized gets the step rule `AllReduceGradients`, unless it has it.
    strategy : Rule, optional
        A rule such as `EASGD`, with "async"; see `ParameterSync`.
    sync_every : int, optional
        Batches from one synchronization to the next, with "async".
    policy : {"any", "all", "leader"}
        See `StopTogether`.
    leader_only : extension class or tuple of them, optional
        Your extensions that write files: only the first worker runs them, with the center's values.
    average : bool, optional
        With "sync": take the mean of the gradients, or their sum. The default is the sum if the
        cost is a sum over the rows of a batch.
    worker : Worker, default ``connect()``

    Raises
    ------
    ConfigurationError
        If the arguments contradict each other or the algorithm.

    Examples
    --------
    >>> main_loop = MainLoop(algorithm, stream, model=Model(cost))           # doctest: +SKIP
    >>> prepare(main_loop).run()                                             # doctest: +SKIP
    """
    worker = connect() if worker is None else worker
    averages, becomes = _averages(main_loop, mode)
    if average is not None and not becomes:
        raise ConfigurationError(
            f'got average={average!r}, which needs mode="sync" and a step rule without '
            "AllReduceGradients: if it has AllReduceGradients, pass average there"
        )
    if averages and not (strategy is None and sync_every is None):
        raise ConfigurationError(
            "got strategy or sync_every, and the algorithm averages gradients, which uses "
            'neither: leave them out, or pass mode="async" and the step rule without '
            "AllReduceGradients"
        )
    triggers: dict[str, Any] = {} if sync_every is None else {"every_n_batches": sync_every}
    classes = leader_only if isinstance(leader_only, tuple) else (leader_only,)
    if not all(isinstance(kind, type) and issubclass(kind, TrainingExtension) for kind in classes):
        raise ConfigurationError(f"got leader_only={leader_only!r}: pass the class of an extension, or a tuple of them")
    triggers["leader_only"] = (*LEADER_ONLY, *classes)
    sync = ParameterSync("auto" if strategy is None else strategy, worker=worker, **triggers)
    stop = StopTogether(policy=policy)
    if not worker.advanced.launched and worker.global_size == 1:
        return main_loop
    stream = main_loop.data_stream
    if not (is_sharded(stream) or is_broadcast(stream)):
        if main_loop.epoch_iterator is not None:
            raise ConfigurationError(
                "got a main loop in the middle of an epoch, whose stream is not sharded, so each "
                "worker would continue with all rows: end the epoch first "
                "(FinishAfter(after_n_epochs=...)), or prepare the main loop before you save it"
            )
        main_loop.data_stream = shard_stream(stream, uneven="drop" if averages else "keep", worker=worker)
    replaced = average_gradients_of(main_loop.algorithm, worker, average) if becomes else {}
    extensions = [_distributed(extension, averages, replaced) for extension in main_loop.extensions]
    for added in (sync, stop):
        if not any(isinstance(extension, type(added)) for extension in extensions):
            # Both extensions move to their positions in `_sort`.
            extensions.insert(0, added)
    main_loop.extensions[:] = extensions
    return main_loop


def _averages(main_loop: Any, mode: str | None) -> tuple[bool, bool]:
    """Return whether gradients are to be averaged, and whether the algorithm does not do so yet."""
    if mode not in (None, "async", "sync"):
        raise ConfigurationError(f'got mode={mode!r}: pass "async" or "sync"')
    algorithm = main_loop.algorithm
    averages = has_averaging_rule(algorithm) or averages_gradients(algorithm)
    if mode == "async" and averages:
        raise ConfigurationError(
            'got mode="async", and the algorithm averages gradients: pass the step rule without '
            'AllReduceGradients, or mode="sync"'
        )
    return averages or mode == "sync", mode == "sync" and not averages


def _distributed(extension: Any, averages: bool, replaced: dict[Any, Any]) -> Any:
    if type(extension) is DataStreamMonitoring:
        evaluator = extension._evaluator
        variables = [*evaluator.theano_variables, *evaluator.monitored_quantities]
        found = DistributedMonitoring(variables, extension.data_stream, evaluator.updates)
        return _with_settings_of(found, extension, "_evaluator")
    if type(extension) is TrainingDataMonitoring and (averages or _records_at_ends(extension)):
        variables = [replaced.get(variable, variable) for variable in extension._variables.variables]
        variables += extension._non_variables.quantities
        found = DistributedTrainingMonitoring(variables)
        return _with_settings_of(found, extension, "_non_variables", "_variables", "_required_for_non_variables")
    return extension


def _with_settings_of(found: Any, extension: Any, *own: str) -> Any:
    found.__dict__.update({name: value for name, value in vars(extension).items() if name not in own})
    return found


def _records_at_ends(extension: Any) -> bool:
    records = [name for name, _, arguments in extension._conditions if "just_aggregate" not in arguments]
    return _AT_ENDS.issuperset(set(map(str, records)) - {"before_training"})
