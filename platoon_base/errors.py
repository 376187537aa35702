"""The errors and the warning that this package raises.

Every message says what was passed, why it is wrong and how to fix it.
"""

from __future__ import annotations

__all__ = [
    "BackendUnavailableError",
    "CollectiveTimeoutError",
    "ConfigurationError",
    "DataMismatchError",
    "LayoutMismatchError",
    "NonFiniteError",
    "PlatoonError",
    "PlatoonWarning",
    "ProtocolError",
    "RowIndexError",
    "WorkerFailedError",
    "WorkerLostError",
]


LEAVE_TOGETHER = (
    "A loop that ends by values of one worker, such as its loss, must decide with all of them: write "
    "if any(connect().gather(bool(loss < 0.1))): break, with connect of platoon_base"
)


class PlatoonError(Exception):
    """Base of every error raised on purpose by this package."""


class ConfigurationError(PlatoonError, ValueError):
    """A value given by the user is invalid."""


class DataMismatchError(ConfigurationError):
    """Workers that divide data have different data; the job ends, even during training."""


class RowIndexError(PlatoonError, IndexError):
    """A row number is outside of the data set."""


class LayoutMismatchError(PlatoonError, ValueError):
    """The parameters differ in number, shape or dtype from those of the job."""


class ProtocolError(PlatoonError):
    """A control message is invalid or out of order."""


class WorkerFailedError(PlatoonError, RuntimeError):
    """A worker of a job that this process has started has failed."""


class WorkerLostError(PlatoonError, ConnectionError):
    """Another process of the job (a worker or the controller) is lost."""


class CollectiveTimeoutError(PlatoonError, TimeoutError):
    """A wait for other processes of the job passed its deadline."""


class NonFiniteError(PlatoonError, ArithmeticError):
    """A NaN or an infinity was about to enter the center."""


class BackendUnavailableError(PlatoonError, ImportError):
    """An optional library, device or system facility is missing."""


class PlatoonWarning(UserWarning):
    """Something works differently from what the user probably expects."""
