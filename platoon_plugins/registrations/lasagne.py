"""Registration of Lasagne with the base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from platoon_base.frameworks import Framework

if TYPE_CHECKING:
    from platoon_base.frameworks import Check

__all__ = ["FRAMEWORK"]


def _checks(earlier: Mapping[str, Check]) -> Iterator[Check]:
    from platoon_base.frameworks import IS_CHECKOUT, importable

    remedy = "pip install 'platoon-plugins[lasagne]'"
    if IS_CHECKOUT:
        has_theano = "Theano" in earlier and earlier["Theano"].works
        remedy = "make setup" if has_theano else "install Theano first; make setup does"
    yield importable("Lasagne", "lasagne", remedy)


FRAMEWORK = Framework(
    preload=("lasagne", "platoon_plugins.lasagne"),
    worth_preloading=("lasagne", "platoon_plugins.lasagne"),
    checks=_checks,
    distributions=("Lasagne",),
    parameters="lasagne.layers.get_all_params(network, trainable=True)",
    rule_goes_to="sync_updates (Lasagne)",
    reports_by="StopOnPatience of Lasagne",
)
