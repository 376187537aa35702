"""The records of workers at the controller: reported values, fingerprints, kept values."""

from __future__ import annotations

from platoon_base.coordination import messages as msg
from platoon_base.coordination.roster import Participant

__all__ = ["Records"]


class Records:
    """Bounded tables; each call returns the reply. ``reported`` has the last value of each name.

    ``settings`` are the hyperparameters that workers have described.
    """

    def __init__(self) -> None:
        self.reported: dict[str, float | str] = {}
        self.settings: dict[str, float | str] = {}
        # For each name the first fingerprint and its rank.
        self._fingerprints: dict[str, tuple[str, int]] = {}

    def report(self, request: msg.Report) -> msg.Reply:
        reported = {**(self.settings if request.settings else self.reported), **request.metrics}
        if len(reported) > msg.MAX_REPORTED:
            text = f"got {len(reported)} different names of reported values, and the limit is {msg.MAX_REPORTED}"
            return msg.Failure(kind="ConfigurationError", message=f"{text}: use the same names in each report")
        if request.settings:
            self.settings = reported
        else:
            self.reported = reported
        return msg.Done()

    def compare(self, request: msg.Same, rank: int) -> msg.Reply:
        if request.name not in self._fingerprints and len(self._fingerprints) >= msg.MAX_FINGERPRINTS:
            del self._fingerprints[next(iter(self._fingerprints))]
        first, giver = self._fingerprints.setdefault(request.name, (request.fingerprint, rank))
        if request.fingerprint == first:
            return msg.Done()
        text = f"{request.name} differs between rank {giver} and rank {rank}"
        if not _is_checksum(first):
            text += f": rank {rank} has {request.fingerprint}, rank {giver} {first}"
        return msg.Failure(kind="DataMismatchError", message=f"{text}.\n{request.remedy}")

    def keep(self, request: msg.Keep, participant: Participant) -> msg.Reply:
        kept = {**participant.kept, request.name: request.value}
        size = sum(len(name.encode()) + len(value) for name, value in kept.items())
        if size > msg.MAX_KEPT_BYTES:
            text = f"got {size} bytes to keep for rank {participant.rank}, and the limit is {msg.MAX_KEPT_BYTES}"
            return msg.Failure(
                kind="ConfigurationError", message=f"{text}: Worker.keep is for counters and similar values; keep less"
            )
        participant.kept = kept
        return msg.Done()


def _is_checksum(text: str) -> bool:
    """Return whether a fingerprint is 16 hexadecimal digits, which mean nothing to a reader."""
    return len(text) == 16 and not set(text).difference("0123456789abcdef")
