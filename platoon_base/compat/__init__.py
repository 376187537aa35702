"""Shims and repairs for packages of 2015 to 2018 on current Python; see docs/compat.md.

The launcher and the adapters call `apply` before they import one; `import platoon_base` never does.
"""

from platoon_base.compat.shims import apply

__all__ = ["apply"]
