"""The center of a checkpoint as a safetensors file, which other programs can read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from platoon_base import rules
from platoon_base.checkpoints.files import About, Checkpoint, newest_in, read_checkpoint
from platoon_base.errors import ConfigurationError
from platoon_base.rules.center import average_of


def export(source: Path, target: Path, center: bool = False) -> tuple[Path, str]:
    """Write a checkpoint, or the newest whole one of a folder, as safetensors; replace ``target``.

    Without ``center`` it prefers the average of the center, if the rule keeps one: the average is
    validated. Return the path of the checkpoint, and ``"center"`` or ``"average of the center"``.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    path = newest_in(source) if source.is_dir() else source
    checkpoint = read_checkpoint(path)
    about = checkpoint.about
    if not about.parameters:
        raise ConfigurationError(
            f"{path} has no center: the workers of that job shared no parameters, as with "
            "averaged gradients. Save the model in the script"
        )
    arrays = None if center else _average(checkpoint)
    what = "center" if arrays is None else "average of the center"
    values: Sequence[Any] = checkpoint.center if arrays is None else arrays
    tensors = dict(zip(unique_names([name for name, *_ in about.parameters]), values))
    unfinished = target.with_name(f"{target.name}.{os.urandom(8).hex()}")  # No link can exist there.
    try:
        save_file(tensors, unfinished, metadata=_metadata(about, what))
        os.replace(unfinished, target)
    except (OSError, SafetensorError) as exc:
        raise ConfigurationError(f"cannot write {target}: {exc}; name another file") from exc
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
    return path, what


def unique_names(names: Sequence[str]) -> list[str]:
    """Return unique names: numbered if several have the same, ``parameter_3`` if it is empty."""
    made: list[str] = []
    used = set(names)
    for i, name in enumerate(names):
        free = name or f"parameter_{i}"
        number = 1
        while free in made or (free != name and free in used):
            free = f"{name or 'parameter'}_{i if number == 1 else f'{i}_{number}'}"
            number += 1
        made.append(free)
    return made


def _average(checkpoint: Checkpoint) -> list[Any] | None:
    """Return the average of the center; None if the rule has none or is of another package."""
    rule = getattr(rules, checkpoint.about.rule, None)
    index = None if rule is None else average_of(rule)
    return None if index is None or index >= len(checkpoint.states) else list(checkpoint.states[index])


def _metadata(about: About, what: str) -> dict[str, str]:
    steps = sum(position.steps for position in about.positions.values())
    return {"values": what, "rule": about.settings or about.rule, "steps": str(steps), "workers": str(about.size)}
