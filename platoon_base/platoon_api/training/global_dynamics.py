"""The synchronous rules at the original's address; `platoon_base.platoon_api.global_dynamics` defines them."""

from platoon_base.platoon_api.global_dynamics import EASGD, SGD, AverageSGD, Downpour, GlobalDynamics, SumSGD

__all__ = ["EASGD", "SGD", "AverageSGD", "Downpour", "GlobalDynamics", "SumSGD"]
