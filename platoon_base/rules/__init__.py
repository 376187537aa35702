"""Synchronization rules: how workers and center, or the workers among themselves, combine their parameters.

Equations alone: arrays in, arrays changed in place, no lock, message or framework. The centers run the rules that
derive from `Rule`, one module each; `synchronous` are functions over an all-reduce.

A new module of this package is all that a new rule needs to be offered here, and in ``PLATOON_RULE``. The imports by
name are for tools that read the source, such as type checkers.
"""

import importlib
import pkgutil

from platoon_base.rules.asgd import ASGD
from platoon_base.rules.averaged_easgd import AveragedEASGD
from platoon_base.rules.center import (
    Adopt,
    CenterState,
    LocalState,
    Rule,
    gossips,
    require_rule,
    settings_of,
    shares_moments,
)
from platoon_base.rules.center_momentum import CenterMomentum
from platoon_base.rules.defaults import at_period, default_period, default_rule, parse_rule, rule_names
from platoon_base.rules.diloco import DiLoCo
from platoon_base.rules.easgd import EAMSGD, EASGD
from platoon_base.rules.forms import Form
from platoon_base.rules.gosgd import GoSGD
from platoon_base.rules.local_sgd import LocalSGD
from platoon_base.rules.outer import OuterRule, fragments_of, overlap_of, round_every, waits
from platoon_base.rules.slow_mo import SlowMo

__all__ = [
    "ASGD",
    "EAMSGD",
    "EASGD",
    "Adopt",
    "AveragedEASGD",
    "CenterMomentum",
    "CenterState",
    "DiLoCo",
    "Form",
    "GoSGD",
    "LocalSGD",
    "LocalState",
    "OuterRule",
    "Rule",
    "SlowMo",
    "at_period",
    "default_period",
    "default_rule",
    "fragments_of",
    "gossips",
    "overlap_of",
    "parse_rule",
    "require_rule",
    "round_every",
    "rule_names",
    "settings_of",
    "shares_moments",
    "waits",
]

for _module in pkgutil.iter_modules(__path__):
    for _name, _found in vars(importlib.import_module(f"{__name__}.{_module.name}")).items():
        if isinstance(_found, type) and issubclass(_found, Rule) and not _name.startswith("_"):
            globals().setdefault(_name, _found)
