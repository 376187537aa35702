"""The handle of one worker, and what it does with its parameters, data and metrics. Adapters and scripts call it."""

from platoon_base.worker.handle import DEFAULT_TIMEOUT_S, Lock, Place, Worker

__all__ = ["DEFAULT_TIMEOUT_S", "Lock", "Place", "Worker"]
