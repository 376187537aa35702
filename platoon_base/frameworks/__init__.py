"""Registrations of frameworks: facts that the base needs and adapters have.

An adapter, of this project or of another one, has an entry point in the group ``platoon.frameworks``. It names a
`Framework`: modules that may be imported before a fork, repairs, how to keep the framework to one GPU, the lines of
`platoon doctor`. So no other file of the base names a framework that it does not compute with itself.
"""

from platoon_base.frameworks.registered import Framework, Registrations, registered
from platoon_base.system.determinism import deterministic_seed
from platoon_base.system.lazy import lazy_names

_OF_CHECKS = ("SETUP", "Check", "importable", "installed", "last_line")

__all__ = [*_OF_CHECKS, "Framework", "Registrations", "deterministic_seed", "registered"]

__getattr__ = lazy_names(__name__, dict.fromkeys(_OF_CHECKS, "platoon_base.frameworks.checks"))
