"""Synchronization rules: how workers and center combine parameters.

Rules that derive from `Rule` run at a center; `synchronous` has functions over an all-reduce. A
rule in a new module of this package is exported here and accepted in ``PLATOON_RULE``. The explicit
imports are for type checkers.
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
from platoon_base.rules.defaults import (
    at_period,
    default_period,
    default_rule,
    parse_rule,
    prepared_rule,
    rule_for_loop,
    rule_names,
)
from platoon_base.rules.easgd import EAMSGD, EASGD
from platoon_base.rules.forms import Form
from platoon_base.rules.gosgd import GoSGD
from platoon_base.rules.outer import DiLoCo, LocalSGD, OuterRule, SlowMo, overlap_of, waits

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
    "gossips",
    "overlap_of",
    "parse_rule",
    "prepared_rule",
    "require_rule",
    "rule_for_loop",
    "rule_names",
    "settings_of",
    "shares_moments",
    "waits",
]

for _module in pkgutil.iter_modules(__path__):
    for _name, _found in vars(importlib.import_module(f"{__name__}.{_module.name}")).items():
        if isinstance(_found, type) and issubclass(_found, Rule) and not _name.startswith("_"):
            globals().setdefault(_name, _found)
