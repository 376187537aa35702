"""The rules of `platoon_base.platoon_api.global_dynamics`, at the original's address."""

from platoon_base.platoon_api.global_dynamics import EASGD, SGD, AverageSGD, Downpour, GlobalDynamics, SumSGD

__all__ = ["EASGD", "SGD", "AverageSGD", "Downpour", "GlobalDynamics", "SumSGD"]
