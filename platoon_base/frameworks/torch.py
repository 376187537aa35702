"""torch, whose tensors the base accepts as parameters and in collective calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from platoon_base.frameworks.registered import Framework
from platoon_base.system.environment import deterministic_seed

if TYPE_CHECKING:
    from platoon_base.frameworks.checks import Check


def _checks(earlier: Mapping[str, Check]) -> Iterator[Check]:
    from platoon_base.frameworks.checks import importable, installed

    where = "in an environment without Theano: " if installed("theano", "").works else ""
    yield importable("PyTorch", "torch", f"{where}pip install torch, if a script uses it")


def _keep(torch: Any, gpu: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(gpu.number)


def _determine(torch: Any) -> None:
    """Seed torch, and make it refuse nondeterministic operations, under ``--deterministic``."""
    seed = deterministic_seed()
    if seed is None:
        return
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


def _trains(frame: FrameType) -> bool:
    """Return whether this is the frame around a step of an optimizer, of any class."""
    within = frame.f_globals.get("__name__") == "torch.optim.optimizer"
    return within and frame.f_code.co_name in ("wrapper", "_use_grad")


def _has_group() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


FRAMEWORK = Framework(
    after_import={"torch": _determine},
    keep_to_gpu={"torch": _keep},
    checks=_checks,
    distributions=("torch",),
    variables=("TORCH", "TORCHELASTIC"),
    parameters="list(model.parameters()) of torch",
    trains=_trains,
    one_model_by="In a loop of PyTorch model, optimizer, loader = prepare(model, optimizer, loader), of "
    "platoon_base.torch_loops, makes them train one model",
    has_group=_has_group,
)
