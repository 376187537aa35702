"""Synchronization rules: how workers and center, or the workers among themselves, combine their parameters.

Equations alone: arrays in, arrays changed in place, no lock, message or framework. The centers run the rules of
`center`; `synchronous` are functions over an all-reduce.
"""

from platoon_base.rules.center import ASGD, EASGD, Adopt, Rule, require_rule, settings_of
from platoon_base.rules.center_momentum import CenterMomentum
from platoon_base.rules.defaults import at_period, default_period, default_rule, parse_rule
from platoon_base.rules.outer import EAMSGD, DiLoCo, LocalSGD, SlowMo, waits

__all__ = [
    "ASGD",
    "EAMSGD",
    "EASGD",
    "Adopt",
    "CenterMomentum",
    "DiLoCo",
    "LocalSGD",
    "Rule",
    "SlowMo",
    "at_period",
    "default_period",
    "default_rule",
    "parse_rule",
    "require_rule",
    "settings_of",
    "waits",
]
