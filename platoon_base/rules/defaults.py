"""The rule and the period that hold where a script names none; environment variables change them for a run."""

from __future__ import annotations

import ast
import importlib
import os
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from platoon_base.errors import ConfigurationError
from platoon_base.rules.averaged_easgd import AveragedEASGD
from platoon_base.rules.center import Rule, member, precise_enough
from platoon_base.rules.center_momentum import CenterMomentum
from platoon_base.system.environment import EVERY_N_BATCHES, RULE

__all__ = ["DEFAULT_PERIOD", "at_period", "default_period", "default_rule", "parse_rule", "rule_names"]

DEFAULT_PERIOD = Rule.period  # batches from one synchronization to the next, of rules that name no period of their own


def default_rule(period: int | None = None, dtypes: Iterable[Any] = ()) -> Rule:
    """Return the rule that holds where the script names none.

    It is ``AveragedEASGD()`` where an adapter synchronizes at every batch, and ``CenterMomentum()`` in loops of the
    user's own, at longer periods and in half precision. The environment variable ``PLATOON_RULE`` has another one, as a
    script would write it, such as ``EASGD(alpha=0.2)``. All workers of a job need the same one.

    Parameters
    ----------
    period : int, optional
        Batches from one synchronization to the next; None if that is not known.
    dtypes : iterable of dtype
        Those of the parameters.

    Raises
    ------
    ConfigurationError
        If the variable's text is no rule.
    """
    text = os.environ.get(RULE)
    if text is not None:
        return parse_rule(text, RULE)
    averages = period == AveragedEASGD.period and precise_enough(dtypes)
    return AveragedEASGD() if averages else CenterMomentum()


def default_period(rule: Rule | str | None = "auto") -> int:
    """Return the batches from one synchronization to the next where the script does not say.

    The environment variable ``PLATOON_EVERY_N_BATCHES`` has the number; else it is the rule's ``period``, or 10.

    Parameters
    ----------
    rule : Rule, None or "auto"
        The adapter's argument; "auto" is the default rule.

    Raises
    ------
    ConfigurationError
        If the variable is no whole number of at least 1.
    """
    text = os.environ.get(EVERY_N_BATCHES)
    if text is None:
        chosen = default_rule(AveragedEASGD.period) if rule == "auto" else rule
        return DEFAULT_PERIOD if chosen is None else int(member(chosen, "period"))
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigurationError(
            f"got {EVERY_N_BATCHES}={text!r}: it counts batches and must be a whole number >= 1; set 10, or unset it"
        )
    return int(text)


def at_period(rule: Rule, period: int) -> Rule:
    """Fill in those defaults of a rule that go by its period in mini-batches; most rules have none."""
    filled: Rule = member(rule, "at_period")(period)
    return filled


def parse_rule(text: str, argument: str = "rule") -> Rule:
    """Read a rule as a script writes it, such as ``EASGD`` or ``EASGD(alpha=0.2)``; nothing is evaluated.

    Parameters
    ----------
    text : str
        The name of a rule of `platoon_base.rules`, with keyword arguments that are plain values.
    argument : str
        Where the text comes from, for the error.

    Raises
    ------
    ConfigurationError
        If it is no rule, or its arguments do not go together.
    """
    name, arguments = _parts(text, argument)
    rules = _rules()
    if name not in rules:
        raise ConfigurationError(f"got {argument}={text!r}: there is no rule {name}; choose one of {', '.join(rules)}")
    known = rule_names()[name]
    unknown = [word for word in arguments if word not in known]
    if unknown:
        raise ConfigurationError(
            f"got {argument}={text!r}: {name} has no argument {', '.join(unknown)}; it has {', '.join(known) or 'none'}"
        )
    try:
        rule: Rule = rules[name](**arguments)
    except ConfigurationError as exc:
        raise ConfigurationError(f"{argument}={text!r}: {exc}") from exc
    return rule


def _parts(text: str, argument: str) -> tuple[str, dict[str, object]]:
    """Return the name and the keyword arguments of a call that is written as text."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            # The name of `**values` is None, and a value that is no literal raises.
            return node.func.id, {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    raise ConfigurationError(
        f"got {argument}={text!r}: write a rule with its arguments by name, and plain numbers, such as EASGD(alpha=0.2)"
    )


def rule_names() -> dict[str, list[str]]:
    """Return the names of the rules that users may name, each with the names of its arguments."""
    return {name: [field.name for field in fields(kind) if field.repr] for name, kind in _rules().items()}


def _rules() -> dict[str, type]:
    """Return the rules that users may name: those of the face of this room with arguments of their own."""
    face = vars(importlib.import_module("platoon_base.rules"))
    return {
        name: found
        for name, found in face.items()
        if isinstance(found, type) and issubclass(found, Rule) and is_dataclass(found)
    }
