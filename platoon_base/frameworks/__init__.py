"""Registrations of frameworks: facts that the base needs and adapters provide.

Each adapter has an entry point in the group ``platoon.frameworks`` that refers to a `Framework`. No
other file of the base mentions a framework that the base does not use itself.
"""

from platoon_base.frameworks.registered import Framework, Registrations, registered
from platoon_base.system.environment import deterministic_seed
from platoon_base.system.imports import lazy_names

_OF_CHECKS = ("SETUP", "Check", "importable", "installed", "last_line")

__all__ = [*_OF_CHECKS, "Framework", "Registrations", "deterministic_seed", "registered"]

__getattr__ = lazy_names(__name__, {"platoon_base.frameworks.checks": " ".join(_OF_CHECKS)})
