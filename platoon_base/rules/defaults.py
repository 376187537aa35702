"""Default rule and period; environment variables override them."""

from __future__ import annotations

import ast
import importlib
import os
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from platoon_base.errors import ConfigurationError
from platoon_base.rules.averaged_easgd import AveragedEASGD
from platoon_base.rules.center import Rule, member, precise_enough, require_rule
from platoon_base.rules.center_momentum import CenterMomentum
from platoon_base.schedule import require_period
from platoon_base.system.environment import EVERY_N_BATCHES, RULE

DEFAULT_PERIOD = Rule.period  # Batches between synchronizations.


def default_rule(period: int | None = None, dtypes: Iterable[Any] = ()) -> Rule:
    """Return the rule in ``PLATOON_RULE``, or else the default for this period and these dtypes."""
    text = os.environ.get(RULE)
    if text is not None:
        return parse_rule(text, RULE)
    # Adapters synchronize at each batch; loops of users have longer periods.
    averages = period == AveragedEASGD.period and precise_enough(dtypes)
    return AveragedEASGD() if averages else CenterMomentum()


def prepared_rule(mode: str | None, strategy: Any = None, sync_every: Any = None, scaling: Any = None) -> Any:
    """Return the rule for the arguments of a `prepare`: "auto" by default, None for "sync"."""
    if mode not in (None, "async", "sync"):
        raise ConfigurationError(f'got mode={mode!r}: pass "async" or "sync"')
    if mode == "sync" and not (strategy is None and sync_every is None):
        raise ConfigurationError(
            'got mode="sync" with strategy or sync_every, which averaged gradients do not use: '
            'pass mode="async" for them'
        )
    if mode == "sync" and scaling not in (None, "none", "linear", "sqrt"):
        raise ConfigurationError(
            f'got scaling={scaling!r} for averaged gradients: pass "none", "linear" or "sqrt", '
            "the scaling of the learning rate"
        )
    number = isinstance(scaling, (int, float)) and not isinstance(scaling, bool)
    if mode == "async" and not (scaling in (None, "none") or number):
        raise ConfigurationError(f'got scaling={scaling!r} with mode="async": pass a number, such as 2, or "none"')
    if scaling is not None and strategy is not None:
        raise ConfigurationError(
            f"got scaling={scaling!r} and strategy={strategy!r}: pass only one of the two, "
            "or strategy=AveragedEASGD(scale=...)"
        )
    if strategy is not None:
        require_rule(strategy, "strategy")
    if sync_every is not None:
        try:
            require_period(sync_every)
        except ConfigurationError as exc:
            raise ConfigurationError(
                f"got sync_every={sync_every!r}: it counts batches and must be a whole number >= 1"
            ) from exc
    if mode == "sync":
        return None
    if scaling is not None:
        return AveragedEASGD(scale=None if scaling == "none" else float(scaling))
    return "auto" if strategy is None else strategy


def rule_for_loop(rule: Any, sync_every: int | None, dtypes: Iterable[Any]) -> tuple[Rule, int]:
    """Return the rule, for a result of `prepared_rule`, and its period."""
    if rule == "auto":
        rule = default_rule(default_period("auto") if sync_every is None else sync_every, dtypes)
    period = default_period(rule) if sync_every is None else sync_every
    return at_period(rule, period), period


def default_period(rule: Rule | str | None = "auto") -> int:
    """Return the number of batches in ``PLATOON_EVERY_N_BATCHES``, or else the rule's period."""
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
    """Return a rule with the defaults that depend on its period, in mini-batches, filled in."""
    filled: Rule = member(rule, "at_period")(period)
    return filled


def parse_rule(text: str, argument: str = "rule") -> Rule:
    """Parse a rule such as ``EASGD(alpha=0.2)`` without evaluating it."""
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
    """Return the name and the keyword arguments of a call."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            # The name of `**values` is None; a value that is not a literal raises.
            return node.func.id, {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    raise ConfigurationError(
        f"got {argument}={text!r}: write a rule with arguments by name and plain numbers, such as EASGD(alpha=0.2)"
    )


def rule_names() -> dict[str, list[str]]:
    """Return the names of the rules in the public API, each with its arguments."""
    return {name: [field.name for field in fields(kind) if field.repr] for name, kind in _rules().items()}


def _rules() -> dict[str, type]:
    face = vars(importlib.import_module("platoon_base.rules"))
    return {
        name: found
        for name, found in face.items()
        if isinstance(found, type) and issubclass(found, Rule) and is_dataclass(found)
    }
