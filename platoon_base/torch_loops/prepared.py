"""`prepare`, after which the script's own loop trains one model on several workers.

Importing this module seeds generators alike on all workers, see `platoon_base.seeds.seed_alike`.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from platoon_base.errors import ConfigurationError
from platoon_base.job import connect
from platoon_base.learning_rate import scaled
from platoon_base.rules import Rule, prepared_rule
from platoon_base.seeds import seed_alike
from platoon_base.torch_loops.loaders import Part, divided
from platoon_base.torch_loops.loops import AsyncLoop, Loop, SyncLoop, begin, current, passing
from platoon_base.worker import Worker, begins_anew, require_on_nonfinite


def prepare(
    *objects: Any,
    mode: str = "async",
    strategy: Rule | None = None,
    sync_every: int | None = None,
    scaling: str | float | None = None,
    on_nonfinite: str = "raise",
    worker: Worker | None = None,
) -> Any:
    """Make the script's own loop train one model on all workers.

    ::

        model, optimizer, loader, scheduler = prepare(model, optimizer, loader, scheduler)

    Call it on all workers, with the objects of the loop in any order. Each of them works as before,
    except:

    - Models and optimizers. With "sync" each ``backward()`` averages the gradients over the rows of
      all workers, before any clipping. With "async" steps of the optimizer synchronize the
      parameters with a center. The model has the center's values from the end of each pass over
      the loader until training continues, and after ``eval()``.
    - A DataLoader yields this worker's rows, without repeats, in equally many batches on all
      workers. Pass it without a DistributedSampler. Leave out loaders that each worker should read
      in full.
    - A scheduler that steps at each batch steps as often as in one process. One that steps after
      each pass steps once. Create it before `prepare`. ReduceLROnPlateau gets the mean of all
      workers.
    - An AveragedModel gets the mean of all workers at the end of each pass.

    Under plain ``python`` nothing changes.

    Parameters
    ----------
    *objects : Module, Optimizer, DataLoader, LRScheduler or AveragedModel
        Any number of each. Models must be on their devices, and not in DistributedDataParallel.
    mode : {"async", "sync"}
        Synchronize with a center, each worker at its own speed, or average the gradients of each
        step.
    strategy : Rule, optional
        A rule such as `EASGD` or `DiLoCo`, with "async"; see `default_rule`.
    sync_every : int, optional
        Steps from one synchronization to the next, with "async".
    scaling : {"none", "linear", "sqrt"} or float, optional
        With "sync", the factor of the learning rate for N workers; "none" by default. With "async",
        a number s for `AveragedEASGD`, whose steps are ``s sqrt(N)`` times as long, or "none"; 2 by
        default.
    on_nonfinite : {"raise", "skip", "restore"}
        With "async", see `Worker.init_shared_params`.
    worker : Worker, optional
        The default is ``connect()``.

    Returns
    -------
    object or tuple
        The objects in the order given; a DataLoader is a new one.

    Raises
    ------
    ConfigurationError
        If the arguments cannot work.
    """
    prepared_rule(mode, strategy, sync_every, scaling)
    require_on_nonfinite(on_nonfinite)
    kinds = [_kind_of(each) for each in objects]
    worker = connect() if worker is None else worker
    if worker.global_size > 1 or worker.advanced.launched:
        made = _prepared(objects, kinds, worker, (mode, strategy, sync_every, scaling, on_nonfinite))
    else:
        made = list(objects)
    return made[0] if len(made) == 1 else tuple(made)


def _prepared(objects: Any, kinds: list[str], worker: Worker, settings: Any) -> list[Any]:
    mode, scaling = settings[0], settings[3]
    of = {kind: [each for each, other in zip(objects, kinds) if other == kind] for kind in _KINDS}
    if mode == "sync" and scaling not in (None, "none") and worker.global_size > 1:
        _scale(of["optimizer"], worker.global_size, str(scaling))
    loop = current()
    if begins_anew(loop, worker, settings, trains=bool(of["model"] or of["optimizer"])) or loop is None:
        kind = Loop if worker.global_size == 1 else SyncLoop if mode == "sync" else AsyncLoop
        loop = kind(worker, settings)
        begin(loop)
    loop.add(of["model"], of["averaged"], of["optimizer"])
    _describe(of, worker, settings)
    return [_changed(each, kind, worker, loop) for each, kind in zip(objects, kinds)]


def _describe(of: dict[str, list[Any]], worker: Worker, settings: Any) -> None:
    """Send what the loop is trained with to trackers."""
    mode, strategy, sync_every, scaling, _ = settings
    found: dict[str, Any] = {"mode": mode, "strategy": strategy, "sync_every": sync_every, "scaling": scaling}
    for optimizer in of["optimizer"][:1]:
        rate = optimizer.param_groups[0].get("lr")  # Optimizers that find their own steps have none.
        found.update(optimizer=type(optimizer).__name__, learning_rate=None if rate is None else float(rate))
    for loader in of["loader"][:1]:
        found["batch_size"] = loader.batch_size
    if of["model"]:
        found["parameters"] = sum(each.numel() for model in of["model"] for each in model.parameters())
    worker.advanced.describe(**found)


def _changed(each: Any, kind: str, worker: Worker, loop: Loop) -> Any:
    if hasattr(type(each), _PREPARED):
        return each
    if kind == "loader":
        loop.loaders += 1
        part = Part(each, worker, next(_numbers), 2 if any(map(_has_batch_norm, loop.models)) else 1)
        made = divided(each, part, passing)
        part.count = len(made) if part.whole is not None else None
        return made
    if kind == "scheduler" and worker.global_size > 1:
        _follow(each, worker)
    return each


def _has_batch_norm(model: Any) -> bool:
    """Return whether a model refuses batches of one row in training."""
    return any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules())


_PREPARED = "platoon_prepared"  # The attribute of the classes of prepared loaders and schedulers.
# Optimizers whose learning rates are scaled.
_scaled: weakref.WeakSet[Any] = weakref.WeakSet()
_numbers = itertools.count(1)  # Of the loaders of all trainings.
_KINDS = {
    "averaged": AveragedModel,
    "model": torch.nn.Module,
    "optimizer": torch.optim.Optimizer,
    "loader": DataLoader,
    "scheduler": (LRScheduler, ReduceLROnPlateau),
}


def _kind_of(each: Any) -> str:
    name = type(each).__name__
    if name in ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"):
        raise ConfigurationError(f"got a model in {name}: pass the model itself, which prepare trains on all workers")
    if isinstance(each, torch.nn.Module) and any(map(torch.nn.parameter.is_lazy, each.parameters())):
        raise ConfigurationError(f"got {name} with parameters that have no shape yet: call it on a batch before")
    for kind, types in _KINDS.items():
        if isinstance(each, types):
            return kind
    raise ConfigurationError(
        f"got {name}: pass models, optimizers, DataLoaders and schedulers of torch; other "
        "objects, such as a GradScaler, need no prepare"
    )


def _scale(optimizers: list[Any], size: int, how: str) -> None:
    new = [optimizer for optimizer in optimizers if optimizer not in _scaled]
    for group in (group for optimizer in new for group in optimizer.param_groups):
        if "initial_lr" in group:
            raise ConfigurationError(
                f"got scaling={how!r} and a scheduler of the learning rate: scale the rates where they are made, by "
                "platoon_base.learning_rate.scaled(rate, world_size(), how), and leave scaling out"
            )
        group["lr"] = group["lr"] * scaled(1.0, size, how)
    _scaled.update(new)


def _follow(scheduler: Any, worker: Worker) -> None:
    """Make a scheduler step as in one process."""
    base: Any = type(scheduler)

    def step(self: Any, *args: Any, **options: Any) -> None:
        loop = current()
        if isinstance(self, ReduceLROnPlateau):
            metric = float(args[0] if args else options.pop("metrics"))
            mean = worker.reduce_metrics({"metric of the scheduler": (metric, 1.0)})["metric of the scheduler"]
            base.step(self, mean, *args[1:], **options)
        elif args or options or loop is None:
            base.step(self, *args, **options)
        else:
            try:
                for _ in range(loop.steps_of(self)):
                    base.step(self)
            except ValueError as error:  # Of OneCycleLR, whose steps are over.
                raise ConfigurationError(
                    f"got {base.__name__} with too few steps ({error}): with prepare it steps as often as in one "
                    "process, so compute its steps from len(loader) before prepare; leave it out of prepare if the "
                    "loop counts steps of its own"
                ) from error

    def reduce(self: Any, protocol: Any) -> Any:  # A pickle has no worker, so it is of the plain class.
        _, _, *state = base.__reduce_ex__(self, protocol)
        return object.__new__, (base,), *state

    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    names |= {"step": step, "__reduce_ex__": reduce, _PREPARED: True}
    scheduler.__class__ = type(base.__name__, (base,), names)


if connect().global_size > 1:
    seed_alike(connect().seed)
