"""Registration of Lasagne with the base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from platoon_base.frameworks import Framework

if TYPE_CHECKING:
    from platoon_base.frameworks import Check


def _checks(earlier: Mapping[str, Check]) -> Iterator[Check]:
    from platoon_base.frameworks import importable

    yield importable("Lasagne", "lasagne", "pip install 'platoon-plugins[lasagne]'")


FRAMEWORK = Framework(
    preload=("lasagne", "platoon_plugins.lasagne"),
    worth_preloading=("lasagne", "platoon_plugins.lasagne"),
    checks=_checks,
    distributions=("Lasagne",),
    parameters="lasagne.layers.get_all_params(network, trainable=True)",
    rule_goes_to="sync_updates (Lasagne)",
    one_model_by="With Lasagne prepare(update, loss, params, ...) for the updates of the function that trains makes "
    "them train one model",
    reports_by="StopOnPatience of Lasagne",
)
