"""Early stopping that all workers decide together."""

from __future__ import annotations

from platoon_base import Worker, connect
from platoon_base.schedule import Patience
from platoon_base.worker import DEFAULT_TIMEOUT_S

_NAME = "StopOnPatience"


class StopOnPatience:
    """End a training on all workers together when a global value stops improving.

    Only the training ends, not the job: make a new `StopOnPatience` for the next training, such as
    the next fold. The best value is stored with the job (`Worker.keep`), so a resumed job or a
    restarted worker continues from it. The launcher shows the values as ``val``.

    Parameters
    ----------
    patience : int
        Number of evaluations without improvement that are tolerated.
    min_delta : float
        Only a change for the better by more than this counts as an improvement.
    mode : {"min", "max"}
        Whether smaller or greater is better.
    name : str
        Name of the stored best value and of the values in the launcher, unique in the script.
    timeout_s : float
        Bound on each wait for the other workers.
    worker : Worker, default ``connect()``

    Attributes
    ----------
    improved : bool
        Whether the latest value was the best so far.
    reason : str
        Why the training ends; empty before.

    Examples
    --------
    >>> stop = StopOnPatience(patience=5)                                          # doctest: +SKIP
    >>> for epoch in range(500):                                                   # doctest: +SKIP
    ...     train_one_epoch()
    ...     if stop(evaluate(val_fn, X_val, y_val, 500)):
    ...         break
    """

    def __init__(
        self,
        patience: int,
        min_delta: float = 0.0,
        mode: str = "min",
        *,
        name: str = _NAME,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        worker: Worker | None = None,
    ) -> None:
        self._patience = Patience(patience, min_delta, mode)
        self._worker = connect() if worker is None else worker
        self._name, self._timeout_s = name, timeout_s
        self._shown_as = "val" if name == _NAME else name
        self._patience.best, self._patience.waited = self._worker.take_kept(name, (self._patience.best, 0))
        self.improved = False
        self.reason = ""

    @property
    def best(self) -> float:
        """The best value so far; NaN before the first."""
        return self._patience.best

    def __call__(self, value: float) -> bool:
        """Record a value, as from `evaluate`; return whether to stop, the same on all workers.

        A collective call. It returns True if one worker's patience is exhausted or the job stops.
        """
        self.improved = self._patience.improved(value)
        self._worker.keep(self._name, (self._patience.best, self._patience.waited), timeout_s=self._timeout_s)
        exhausted = self._patience.exhausted
        pairs = {"exhausted": (float(exhausted), 1.0)}
        summed = self._worker.advanced.sum_arrays(f"{self._name} decides", [], pairs, timeout_s=self._timeout_s)
        if summed.pairs["exhausted"][0]:
            self.reason = f"no improvement in {self._patience.patience} evaluations"
        elif summed.stop:
            self.reason = summed.stop
        self._print_value(value, first=summed.ranks[0] == self._worker.global_rank)
        return bool(self.reason)

    def _print_value(self, value: float, first: bool) -> None:
        """Report the patience used so far; the first worker also reports the common value."""
        self._worker.advanced.announce(limit=f"patience {self._patience.waited}/{self._patience.patience}")
        if first and self._worker.advanced.launched:
            self._worker.report({self._shown_as: float(value)}, timeout_s=self._timeout_s)
