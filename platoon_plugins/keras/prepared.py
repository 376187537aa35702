"""`prepare`, after which the script's own ``fit`` trains one model on several workers.

Importing this module seeds generators alike on all workers, see `seeds.seed_alike`.
"""

from __future__ import annotations

import inspect
import weakref
from typing import Any, NamedTuple

import keras

from platoon_base import Worker, connect
from platoon_base.errors import ConfigurationError
from platoon_base.learning_rate import scaled
from platoon_base.rules import Rule, prepared_rule
from platoon_base.worker import warn_once
from platoon_plugins.keras import backends, marks, seeds
from platoon_plugins.keras.callbacks import bounds_of, listed
from platoon_plugins.keras.fit_arguments import batch_of, build, divide
from platoon_plugins.keras.gradients import DistributedOptimizer, average_of, plain_again
from platoon_plugins.keras.learning_rate import scale_schedule
from platoon_plugins.keras.marks import is_marked, patch, signature_of
from platoon_plugins.keras.model_state import broadcast_variables
from platoon_plugins.keras.optimizers import all_optimizers, average_of_model, outer_optimizers, schedule_of, with_inner
from platoon_plugins.keras.parts import NAMES
from platoon_plugins.keras.statistics import Statistics
from platoon_plugins.keras.sync import LEADER_ONLY, distribute, require_settings
from platoon_plugins.keras.training import train_by_rule


def prepare(
    model: Any,
    mode: str | None = None,
    *,
    strategy: Rule | None = None,
    sync_every: int | None = None,
    scaling: str | float | None = None,
    policy: str = "any",
    leader_only: tuple[type, ...] = LEADER_ONLY,
    on_nonfinite: str = "raise",
    worker: Worker | None = None,
) -> Any:
    """Make each later ``fit`` of a model train it on all workers.

    ``fit`` then puts its data through `shard`, its callbacks through `distribute` and, in the
    synchronous mode, the model's optimizers through `DistributedOptimizer`. All workers pass the
    same whole data; ``batch_size`` is that of one worker.

    - ``validation_split`` and ``validation_data`` are those of one process.
    - Of a tf.data.Dataset or a generator each worker takes every N-th batch. Shuffles of a
      tf.data.Dataset need seeds that all workers share: their own, ``tf.random.set_seed``, or the
      seed set when ``prepare`` is imported.
    - ``steps_per_epoch``, and ``validation_steps`` of data sets, are divided by the number of
      workers, rounded up.
    - A LearningRateSchedule goes through `scale_schedule`.
    - Results of `shard`, `distribute`, `scale_schedule` and ``dataset.shard`` are used unchanged. A
      ``fit`` with callbacks of `distribute` is not changed at all.

    ``train_on_batch``, only with ``mode="sync"``, takes this worker's rows of the batch.
    ``evaluate`` and ``predict`` work as in one process; the functions of these names in this
    package divide their work. ``save`` replaces a file atomically, so all workers may call it.

    Under plain ``python``, and for a single worker, ``fit`` is that of Keras. Copies
    (``clone_model``, ``deepcopy``, ``load_model``) are plain models: prepare them too.

    Parameters
    ----------
    model : keras.Model
        Before or after ``compile``.
    mode : {"async", "sync"}, optional
        Synchronize with a center, each worker at its own speed, or average the gradients of each
        step. The default is "sync" for a model with a `DistributedOptimizer`, also if it was loaded
        or copied, and "async" otherwise.
    strategy : Rule, optional
        A rule such as `EASGD` or `DiLoCo`, with "async"; see `distribute`.
    sync_every : int, optional
        Batches from one synchronization to the next, with "async"; see `distribute`.
    scaling : {"none", "linear", "sqrt"} or float, optional
        With "sync", the factor of the learning rate for N workers, see `scale_learning_rate`;
        "none" by default. On Keras 3 a loaded or copied model keeps its saved rate. With "async", a
        number s for `AveragedEASGD`, whose steps are ``s sqrt(N)`` times as long, or "none"; 2 by
        default.
    policy, leader_only, on_nonfinite
        See `distribute`.
    worker : Worker, optional
        The default is ``connect()``.

    Returns
    -------
    keras.Model
        The same object.

    Raises
    ------
    ConfigurationError
        If the arguments cannot work. Those of ``fit`` are checked there.

    Examples
    --------
    >>> model = prepare(model)                                                    # doctest: +SKIP
    >>> model.fit(x, y, validation_split=0.2, callbacks=[EarlyStopping()])        # doctest: +SKIP
    """
    if not isinstance(model, keras.Model):
        raise ConfigurationError(f"got {type(model).__name__}: pass a Keras model, prepare(model)")
    require_settings(None, None, policy, leader_only, on_nonfinite)
    worker = connect() if worker is None else worker
    others = {"policy": policy, "leader_only": leader_only, "on_nonfinite": on_nonfinite, "worker": worker}
    chosen = "async" if mode is None and not (strategy is None and sync_every is None) else mode
    settings = _Settings(chosen, strategy, sync_every, scaling, others)
    settings.rule(settings.mode_of(model))
    marks.prepared[model] = settings._replace(
        intent=worker.advanced.intend(
            "prepare",
            'was followed by no fit of this model: train it with model.fit, or with train_on_batch and mode="sync"',
        )
    )
    # Other models are not affected.
    for name, new in (("fit", _fit), ("fit_generator", _fit), ("train_on_batch", _train_on_batch)):
        patch(keras.Model, name, new)
    return model


class _Settings(NamedTuple):
    """The arguments of `prepare`; ``others`` are those that `distribute` has too."""

    mode: str | None
    strategy: Rule | None
    sync_every: int | None
    scaling: str | float | None
    others: dict[str, Any]
    intent: Any = None

    @property
    def worker(self) -> Worker:
        worker: Worker = self.others["worker"]
        return worker

    def mode_of(self, model: Any) -> str:
        """Return the mode; by default the one of the model's optimizers."""
        averages = any(average_of(each) is not None or is_marked(each) for each in all_optimizers(model))
        return self.mode or ("sync" if averages else "async")

    def rule(self, mode: str) -> Any:
        return prepared_rule(mode, self.strategy, self.sync_every, self.scaling)

    def make_ready(self, model: Any) -> Any:
        """Give the model the optimizers of its mode, and return the rule."""
        # A `compile` may have replaced them.
        self.intent.used = True
        mode = self.mode_of(model)
        rule = self.rule(mode)
        if mode == "sync":
            changed = [self._average(each) for each in outer_optimizers(model)]
            compiler = {"tensorflow": "XLA", "torch": "torch.compile"}.get(keras.backend.backend())
            # A model saved on JAX has jit_compile=True.
            if compiler and getattr(model, "jit_compile", False):
                warn_once(
                    f"this model trains without {compiler} (jit_compile=False), which cannot "
                    'average gradients inside its program; prepare(model, mode="async") keeps it'
                )
                model.jit_compile = False
                changed.append(True)
        else:
            for each in outer_optimizers(model):
                _scale_rate(each, "none", 1)
            changed = [plain_again(each) for each in all_optimizers(model)]
            train_by_rule(model)
        if any(changed):
            model.train_function = None
        return rule

    def _average(self, optimizer: Any) -> bool:
        if self.scaling not in (None, "none") and average_of(optimizer) is None and is_marked(optimizer):
            warn_once(
                f"got scaling={self.scaling!r} and an optimizer that was loaded or copied with "
                "its model: its learning rate stays as it was saved, because it was scaled "
                "before; set another one before fit"
            )
            _factors[optimizer] = scaled(1.0, self.worker.global_size, str(self.scaling))
        _scale_rate(optimizer, str(self.scaling or "none"), self.worker.global_size)
        if average_of(optimizer) is not None:
            return False
        for inner in with_inner(optimizer):
            plain_again(inner)
        DistributedOptimizer(optimizer, worker=self.worker)
        return True


# The factors of the learning rates of optimizers.
_factors: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()


def _scale_rate(optimizer: Any, how: str, size: int) -> None:
    """Multiply a learning rate, replacing the factor of an earlier `prepare`."""
    before, factor = _factors.get(optimizer, 1.0), scaled(1.0, size, how)
    if factor == before:
        return
    if schedule_of(optimizer) is not None:
        raise ConfigurationError(
            f"got scaling={how!r} and the schedule {type(schedule_of(optimizer)).__name__} of the learning rate: "
            "scale its rates where it is made, by scale_learning_rate(rate), and leave scaling out"
        )
    rate = _rate_of(optimizer) * factor / before
    if hasattr(keras, "ops"):
        optimizer.learning_rate = rate
    else:
        keras.backend.set_value(_variable_of_rate(optimizer), rate)
    _factors[optimizer] = factor


def _variable_of_rate(optimizer: Any) -> Any:
    """Return the variable of an optimizer of Keras 2."""
    return getattr(optimizer, "learning_rate" if hasattr(optimizer, "learning_rate") else "lr")


def _rate_of(optimizer: Any) -> float:
    if hasattr(keras, "ops"):
        return float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    return float(keras.backend.get_value(_variable_of_rate(optimizer)))


def _scale_schedules(model: Any, worker: Worker) -> None:
    for optimizer in all_optimizers(model):
        schedule = schedule_of(optimizer)
        if schedule is not None and not hasattr(type(schedule), "steps_scaled_by"):
            optimizer._learning_rate = scale_schedule(schedule, worker=worker)
            model.train_function = None


# The methods of keras.Model that train prepared models.


def _fit(plain: Any, model: Any, *args: Any, **options: Any) -> Any:
    settings = marks.prepared.get(model)
    if settings is None:
        return plain(model, *args, **options)
    bound = signature_of(plain).bind(model, *args, **options)
    callbacks = listed(bound.arguments.get("callbacks"))
    if bounds_of(callbacks) and settings.mode == "sync" and settings.worker.global_size > 1:
        settings.make_ready(model)
    if bounds_of(callbacks) or (settings.worker.global_size == 1 and not settings.worker.advanced.launched):
        return plain(model, *args, **options)
    values = bound.arguments
    rule: Any = "auto"
    if settings.worker.global_size > 1:
        rule = settings.make_ready(model)
        _scale_schedules(model, settings.worker)
        divide(model, values, settings.worker)
        # Other back ends build the model before the first callback.
        if keras.backend.backend() == "tensorflow":
            build(model, values)
    _describe(model, values, settings)
    values["callbacks"] = distribute(callbacks, rule, settings.sync_every, **settings.others)
    return plain(model, **_by_name(bound))


def _describe(model: Any, values: dict[str, Any], settings: _Settings) -> None:
    """Send what a fit trains with to trackers."""
    optimizers = all_optimizers(model)
    settings.worker.advanced.describe(
        mode=settings.mode_of(model),
        strategy=settings.strategy,
        sync_every=settings.sync_every,
        scaling=settings.scaling,
        optimizer=", ".join(type(each).__name__ for each in optimizers) or None,
        learning_rate=_rate_of(optimizers[0]) if optimizers else None,
        batch_size=values.get("batch_size"),
        epochs=values.get("epochs", 1),
        parameters=model.count_params() if model.built else None,
    )


def _train_on_batch(plain: Any, model: Any, *args: Any, **options: Any) -> Any:
    settings = marks.prepared.get(model)
    if settings is None or settings.worker.global_size == 1 or model in marks.in_loops:
        return plain(model, *args, **options)
    if settings.mode_of(model) == "async":
        raise ConfigurationError(
            "got a train_on_batch of a model whose workers synchronize with a center, which "
            'happens only in fit: average the gradients, prepare(model, mode="sync"), or use fit'
        )
    bound = signature_of(plain).bind(model, *args, **options)
    data = tuple(bound.arguments.get(name) for name in NAMES)
    settings.make_ready(model)
    average = average_of_model(model)
    if average is None or not all(member.attached for member in average.members):
        build(model, bound.arguments)
        broadcast_variables(model, worker=settings.worker)
        _state_of_loops[model] = Statistics(settings.worker, backends.current())
        _state_of_loops[model].start(model)
    own = batch_of(data, settings.worker)
    bound.arguments.update({name: part for name, part in zip(NAMES, own) if part is not None})
    logs = plain(*bound.args, **bound.kwargs)
    _state_of_loops[model].step_ends(model)
    return logs


# The state of each model in a loop over `train_on_batch`.
_state_of_loops: weakref.WeakKeyDictionary[Any, Statistics] = weakref.WeakKeyDictionary()

if connect().global_size > 1:
    seeds.seed_alike(connect().seed)


def _by_name(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return arguments but the first by name: MLflow adds callbacks by name."""
    kinds = {name: parameter.kind for name, parameter in bound.signature.parameters.items()}
    named: dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:
        named.update(value if kinds[name] is inspect.Parameter.VAR_KEYWORD else {name: value})
    return named
