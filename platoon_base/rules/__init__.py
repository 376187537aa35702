"""Synchronization rules: how workers and center, or the workers among themselves, combine their parameters.

Equations alone: arrays in, arrays changed in place, no lock, message or framework. The centers run the rules of
`center`; `synchronous` are functions over an all-reduce.
"""

from platoon_base.rules.center import ASGD, EASGD, Adopt, Rule, default_rule, require_rule, settings_of

__all__ = ["ASGD", "EASGD", "Adopt", "Rule", "default_rule", "require_rule", "settings_of"]
