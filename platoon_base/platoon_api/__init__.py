"""The names of the original Platoon, as thin aliases: its users move by changing their import lines.

Modules that need Theano import it: `platoon_base.platoon_api.global_dynamics` and `platoon_base.platoon_api.ops`.
"""

from platoon_base.rules.center import ASGD, EASGD

__all__ = ["ASGD", "EASGD"]
