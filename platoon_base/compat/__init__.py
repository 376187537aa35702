"""Shims and repairs with which packages of 2015 to 2018 run on today's Python.

The launcher and the adapters call `apply` before they import one; `import platoon_base` never does.
docs/compat.md tells how each repair was found.
"""

from platoon_base.compat.shims import apply

__all__ = ["apply"]
