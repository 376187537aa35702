"""The shared parameters of a worker."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Literal

from platoon_base.coordination import messages as msg
from platoon_base.errors import ConfigurationError, NonFiniteError
from platoon_base.rules import Rule, default_rule
from platoon_base.worker.connection import Connection
from platoon_base.worker.shared_parameters import SharedParameters, share

log = logging.getLogger(__name__)

_CLOSING_S = 60.0


class Sharing:
    def __init__(self, connection: Connection) -> None:
        self.current: SharedParameters | None = None
        self.number = self._starts = 0
        self._synced = 0  # Synchronizations of earlier trainings.
        self._connection = connection

    def start(
        self,
        params: Iterable[Any],
        rule: Rule | None,
        on_nonfinite: str,
        timeout_s: float,
        moments: Iterable[Any] | None = None,
    ) -> None:
        self._connection.require_open()
        if self.current is not None:
            raise ConfigurationError(
                "parameters are shared already: call init_shared_params once, or release_shared_params on every worker "
                "before it is called again"
            )
        rule = default_rule() if rule is None else rule
        self.current = share(self._connection, params, rule, on_nonfinite, timeout_s, moments, self._synced)
        self._connection.combined += 1
        self._starts += 1
        self.number = self._starts

    def release(self, timeout_s: float) -> None:
        shared = self.current
        if shared is not None:
            shared.complete_round(timeout_s)
            shared.finish()
        self._all_reach("finish", shared, timeout_s)
        if shared is not None:
            shared.settle()  # The controller reads the center once more after this.
        self._all_reach("drop", shared, timeout_s)
        self._synced += 0 if shared is None else shared.count
        self.current, self.number = None, 0
        if shared is not None:
            shared.withdraw()
        self._all_reach("free", shared, timeout_s)  # Now the next center can use the name.

    def _all_reach(
        self, stage: Literal["finish", "drop", "free"], shared: SharedParameters | None, timeout_s: float
    ) -> None:
        call = msg.ReleaseCenter(stage=stage, shares=shared is not None, timeout_s=timeout_s)
        self._connection.client.wait_for_all(call, msg.Met)

    def require(self) -> SharedParameters:
        self._connection.require_open()
        if self.current is None:
            raise ConfigurationError("no parameters are shared yet: call init_shared_params first")
        return self.current

    def require_served(self) -> SharedParameters:
        """Return the shared parameters; raise `WorkerLostError` if the controller is lost."""
        shared = self.require()
        self._connection.require_controller()
        return shared

    def complete_quietly(self) -> None:
        """Complete what is under way, such as a round that overlaps with training; a failure is only logged."""
        try:
            if self.current is not None:
                self.current.complete_round(_CLOSING_S)
                self.current.require_last_sync()
        except NonFiniteError as exc:
            log.warning("%s", exc)
        except Exception as exc:  # This worker must leave after any error.
            log.warning(
                "the last synchronization was not completed because this worker left, so the center lacks it: %s", exc
            )

    def close(self) -> None:
        if self.current is not None:
            self.current.close()
