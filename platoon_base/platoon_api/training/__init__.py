"""Synchronous training, where the original has it: see `platoon_base.platoon_api.training.global_dynamics`."""
