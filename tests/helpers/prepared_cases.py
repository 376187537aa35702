"""The settings of `prepare` that tests of loops compare, and the rules that they lead to."""

from platoon_base import EASGD, AveragedEASGD, CenterMomentum, DiLoCo

SETTINGS = {
    "default": {},
    "none": {"scaling": "none"},
    "period": {"sync_every": 4},
    "EASGD": {"strategy": EASGD(), "sync_every": 2},
    "DiLoCo": {"strategy": DiLoCo(overlap=0.5), "sync_every": 4},
}
RULES = {"default": AveragedEASGD, "none": AveragedEASGD, "period": CenterMomentum, "EASGD": EASGD, "DiLoCo": DiLoCo}
