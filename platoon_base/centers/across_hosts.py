"""The center of one host in a job on several hosts: rounds, means, overwrites, and moves by others.

In a round, each host's courier sends its contribution to the others. Once the hosts agree which
contributions are complete, each host combines these in the order of the hosts, so the results are
bitwise equal.
A host whose center is at another round, after a late join or a return, first receives the center of
the others, and its contribution is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from platoon_base.centers.host_rounds import Rounds, Total
from platoon_base.centers.stripes import Stripe, copy_all, cut, wait_until
from platoon_base.compression.codecs import Codec
from platoon_base.compression.packing import Packing, Residuals
from platoon_base.dtypes import Array, sum_dtype
from platoon_base.errors import CollectiveTimeoutError
from platoon_base.layout import Layout, Piece
from platoon_base.shm.schema import Part, Parts, Word

log = logging.getLogger(__name__)

_HOST_BITS = 16


class Overwrites:
    """Words in a center's header that pass a worker's overwrite to the other hosts of a job.

    The worker counts its overwrite and waits; its courier sends the center to all other hosts and
    records that. A version orders the overwrites of different hosts; it is equal on all hosts when
    none is in progress.
    """

    written = Word("written")  # Number of overwrites by workers of this host.
    spread = Word("spread")  # Count of the latest overwrite that all other hosts have.
    version = Word("center_version")  # Version of the latest overwrite, by any host, that this center holds.

    def __init__(self, header: Any) -> None:
        self._header = header

    def note(self) -> int:
        """Count an overwrite and return the count; the caller holds the locks of all stripes."""
        self.written += 1
        return self.written

    @staticmethod
    def later(version: int, host: int) -> int:
        """Return the version of the next overwrite on ``host``; the higher host wins a tie."""
        return ((version >> _HOST_BITS) + 1 << _HOST_BITS) | host


def await_hosts(done: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until the courier has done something, or raise `CollectiveTimeoutError`."""
    if not wait_until(done, timeout_s):
        raise CollectiveTimeoutError(
            f"waited {timeout_s:g} s for {what}: is the network slow or down, or a host "
            "suspended? Read the logs of the launchers and couriers, or pass a longer timeout_s"
        )


def wide(layout: Layout) -> Layout:
    """Return the layout of the sum of moves: float32 where half precision would lose small ones."""
    return Layout(tuple(spec._replace(dtype=sum_dtype(spec.dtype).name) for spec in layout.trained.specs))


class Shift:
    """Sum of all moves by other hosts, in shared memory, and the part that this worker has applied.

    Workers apply the moves too: otherwise their elastic pull would undo them. Moments are not
    moved: a worker's second moment that is smaller than the center's could become negative.
    """

    def __init__(self, layout: Layout, total: list[Array], remembering: list[list[Array]]) -> None:
        self._total = total
        self._seen = wide(layout).empty()
        self._remembering = remembering
        self._counts: dict[int, int] = {}

    def begin(self, stripe: Stripe) -> None:
        """Mark the current sum as applied: this worker has just read the center."""
        self._counts[stripe.index] = int(stripe.holder["shifts"])
        pieces = stripe.without_moments
        for seen, total in zip(cut(self._seen, pieces), cut(self._total, pieces)):
            np.copyto(seen, total)

    def follow(self, stripe: Stripe, arrays: Sequence[Array]) -> None:
        """Apply the outstanding moves to this worker's parameters and remembering states."""
        count = int(stripe.holder["shifts"])
        if count == self._counts.get(stripe.index):
            return
        if stripe.index not in self._counts:
            self.begin(stripe)
            return
        self._counts[stripe.index] = count
        pieces = stripe.without_moments
        remembering = [cut(state, pieces) for state in self._remembering]
        for i, (seen, total) in enumerate(zip(cut(self._seen, pieces), cut(self._total, pieces))):
            moved = (total - seen).astype(arrays[i].dtype, copy=False)
            np.copyto(seen, total)
            arrays[i] += moved
            for state in remembering:
                state[i] += moved

    def move(self, stripe: Stripe, by: Sequence[Array]) -> None:
        """Move the center's part of a stripe, and add the move to the sum."""
        pieces = stripe.without_moments
        for center, total, moved in zip(stripe.center, cut(self._total, pieces), cut(by, pieces)):
            center += moved
            total += moved
        stripe.holder["shifts"] += 1

    def move_to(self, stripe: Stripe, values: Sequence[Array]) -> None:
        """Move the center's part of a stripe to ``values``, and add the move to the sum."""
        pieces = stripe.without_moments
        for center, total, value in zip(stripe.center, cut(self._total, pieces), cut(values, pieces)):
            total += value.astype(total.dtype, copy=False) - center
            np.copyto(center, value)
        stripe.holder["shifts"] += 1


class RoundTotals:
    """One host's totals of one round, in a flat buffer that is sent; with ``packing`` packed there."""

    number = Word("number")  # Number of the round; 0 before the first.
    base = Word("base")  # Latest round of the center that the contributions started from.

    def __init__(self, layout: Layout, stripes: Sequence[tuple[Piece, ...]], packing: Packing | None = None) -> None:
        self._stripes, self._packing, each = stripes, packing, (len(stripes),)
        sums = Part("counts", "f8", each, 8), Part("parts", "f8", each, 8)
        arrays = Part("arrays", layout) if packing is None else Part("arrays", "u1", (packing.nbytes,))
        parts = Parts(Part("about", [("number", "f8"), ("base", "f8")]), *sums, arrays)
        whole = np.zeros(parts.nbytes // 8, np.float64)
        self.buffer = memoryview(whole.view(np.uint8))  # type: ignore[arg-type]
        views = parts.views(self.buffer)
        self.head = whole[: parts.at["arrays"] // 8]
        self._header, self.counts, self.parts, self._sent = views.about, views.counts, views.parts, views.arrays
        # Sum of ``x - c`` over the workers.
        self.arrays: list[Array] = views.arrays if packing is None else layout.empty()

    def pack(self, residuals: Residuals, version: int) -> None:
        """Pack the totals with error feedback, and set them to what the other hosts will unpack.

        All hosts then add the same bits. The rest is the residual of the next round. Stripes without
        a contribution keep theirs; ``version`` shows whether residuals belong to overwritten values.
        """
        if self._packing is not None:
            before, after = residuals.begin(self.number, version)
            self._packing.pack(self.arrays, before, after, self._sent)
            for pieces in self.without_contribution():
                copy_all(cut(after, pieces), cut(before, pieces))
            self._clear()
            residuals.end(self.number)

    def unpack(self) -> None:
        """Set the totals from the buffer, which another host has sent."""
        if self._packing is not None:
            self._packing.unpack(self._sent, self.arrays)
            self._clear()

    def _clear(self) -> None:
        """Set the stripes without a contribution to 0: they would hold residuals only."""
        for pieces in self.without_contribution():
            for array in cut(self.arrays, pieces):
                array[...] = 0

    def without_contribution(self) -> Iterator[tuple[Piece, ...]]:
        """Yield the pieces of each stripe without a contribution."""
        return (pieces for pieces, count in zip(self._stripes, self.counts) if not count)


class AcrossHosts:
    """One host's center in rounds of all hosts: `HostsRounds` if rules wait, or `HostsMeans`.

    `read`, `gather` and `replace` return False if a stripe stayed locked: the caller repeats them.
    """

    # If True, other hosts change the center only in these rounds. Otherwise couriers also exchange
    # centers between the rounds.
    workers_wait = False
    made: Any = 0  # The latest round that this center has completed.
    wanted: Any = 0  # The latest round whose center a worker of this host waits for.

    def __init__(self, layout: Layout, pieces: Sequence[tuple[Piece, ...]]) -> None:
        self._layout, self._pieces = layout, pieces

    def new_totals(self, codec: Codec | None = None) -> RoundTotals:
        """Allocate memory for a host's contribution to a round."""
        # The mean of centers is exact.
        packing = None if codec is None or not self.workers_wait else Packing(self._layout, codec)
        return RoundTotals(self._layout, self._pieces, packing)

    def are_gathered(self, number: int) -> bool:
        """Return whether this center holds the contributions of all hosts to a round."""
        raise NotImplementedError

    def wait(self, number: int, timeout_s: float) -> None:
        """Wait until `are_gathered`, or raise `CollectiveTimeoutError`."""
        await_hosts(lambda: self.are_gathered(number), timeout_s, f"the contributions of other hosts to round {number}")

    def read(self, totals: RoundTotals, number: int) -> bool:
        """Copy this host's contribution to a round."""
        raise NotImplementedError

    def gather(self, totals: Sequence[RoundTotals], number: int, workers: Sequence[int]) -> bool:
        """Combine the contributions of several hosts, in order."""
        raise NotImplementedError

    def replace(self, values: Sequence[Array], states: Sequence[Sequence[Array]], number: int) -> bool:
        """Overwrite this center with another host's, and set its round."""
        raise NotImplementedError


class HostsRounds(AcrossHosts):
    """Rounds of a rule that waits: the sums of the hosts' workers are added."""

    workers_wait = True

    def __init__(
        self,
        layout: Layout,
        stripes: Sequence[Stripe],
        rounds: Rounds,
        holders: Array,
        visit: Callable[[Callable[[Stripe], None]], list[Stripe]],
    ) -> None:
        super().__init__(layout, [stripe.pieces for stripe in stripes])
        self._rounds, self._holders, self._visit = rounds, holders, visit

    @property
    def made(self) -> int:
        return int(self._holders["round"].min()) if len(self._holders) else 0

    @property
    def wanted(self) -> int:
        return int(self._holders["wanted"][0]) if len(self._holders) else 0

    def want(self, number: int) -> None:
        """Make the courier request the center of a round from other hosts."""
        self._holders["wanted"][:1] = max(number, self.wanted)

    def are_gathered(self, number: int) -> bool:
        return bool((np.maximum(self._holders["round"], self._holders["gathered"]) >= number).all())

    def read(self, totals: RoundTotals, number: int) -> bool:
        """Copy the sum of this host's workers; also False if a stripe has its step already."""
        totals.number, totals.base = number, self.made
        has_step = []

        def copy(stripe: Stripe) -> None:
            own = self._rounds.total_here(stripe)
            has_step.append(stripe.holder["round"] >= number)
            totals.counts[stripe.index], totals.parts[stripe.index] = own.workers, own.part
            own.write(cut(totals.arrays, stripe.pieces))

        if self._visit(copy) or any(has_step):
            totals.number = 0
            return False
        return True

    def gather(self, totals: Sequence[RoundTotals], number: int, workers: Sequence[int]) -> bool:
        def put(stripe: Stripe) -> None:
            if max(stripe.holder["round"], stripe.holder["gathered"]) < number:
                index, pieces = stripe.index, zip(*(cut(each.arrays, stripe.pieces) for each in totals))
                count, part = sum(int(each.counts[index]) for each in totals), sum(each.parts[index] for each in totals)
                self._rounds.gather(stripe, number, Total(count, part, list(pieces)))

        return not self._visit(put)

    def replace(self, values: Sequence[Array], states: Sequence[Sequence[Array]], number: int) -> bool:
        number = max(number, self.made)

        def put(stripe: Stripe) -> None:
            new, *given = (cut(arrays, stripe.pieces) for arrays in (values, *states))
            self._rounds.replace(stripe, new, given)
            stripe.holder["round"] = number

        return not self._visit(put)


class HostsMeans(AcrossHosts):
    """Means of the centers under a rule that does not wait, which hosts make at a standstill.

    Averages are treated like centers; moments stay those of each host.
    """

    made = Word("mean")

    def __init__(
        self,
        layout: Layout,
        header: Any,
        copy: Callable[[Sequence[Array], Sequence[Array]], None],
        move_to: Callable[[Sequence[Array], Sequence[Array]], bool],
        put: Callable[[Sequence[Array], Sequence[Sequence[Array]]], bool],
        average: int | None,
    ) -> None:
        self._header = header
        self._copy, self._move_to, self._put = copy, move_to, put
        specs = layout.trained.specs
        self._trained = len(specs)
        # The courier sets this function; it returns True if no exchange is in flight. During an
        # exchange, one of two centers may have moved before the other.
        self.is_quiet: Callable[[], bool] = lambda: True
        super().__init__(Layout(specs if average is None else specs * 2), ())

    def are_gathered(self, number: int) -> bool:
        return self.made >= number

    def read(self, totals: RoundTotals, number: int) -> bool:
        """Copy the center; also False while an exchange of the courier is in flight."""
        if not self.is_quiet():
            return False
        self._copy(totals.arrays[: self._trained], totals.arrays[self._trained :])
        totals.base, totals.number = 0, number
        return True

    def gather(self, totals: Sequence[RoundTotals], number: int, workers: Sequence[int]) -> bool:
        """Set the center to the mean of finite copies, weighted by ``workers``; False if locked."""
        finite = [i for i, each in enumerate(totals) if all(map(is_finite, each.arrays))]
        if len(finite) < len(totals):
            log.warning(
                "the centers of %d of %d hosts have a NaN or an infinity and are left out of the "
                "mean: has training diverged? A lower learning rate helps",
                len(totals) - len(finite),
                len(totals),
            )
        if finite:
            mean = weighted_mean([totals[i].arrays for i in finite], [float(workers[i]) for i in finite])
            if not self._move_to(mean[: self._trained], mean[self._trained :]):
                return False
        self.made = number
        return True

    def replace(self, values: Sequence[Array], states: Sequence[Sequence[Array]], number: int) -> bool:
        if not self._put(values, states):
            return False
        self.made = max(number, self.made)
        return True


def weighted_mean(copies: Sequence[Sequence[Array]], weights: Sequence[float]) -> list[Array]:
    """Return the mean of several copies, exact for equal copies; half precision adds in float32."""
    total = sum(weights)
    means = []
    for arrays in zip(*copies):
        dtype = arrays[0].dtype
        wide = sum_dtype(dtype)
        first = arrays[0].astype(wide, copy=False)
        mean = first.copy()
        for array, weight in zip(arrays[1:], weights[1:]):
            # Add products, not differences: the difference of two large numbers may overflow.
            part = wide.type(weight / total)
            mean += array.astype(wide, copy=False) * part - first * part
        means.append(mean.astype(dtype, copy=False))
    return means


def is_finite(array: Array) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        # One sum is faster than a test of each element.
        total = array.sum(dtype=sum_dtype(array.dtype))
        return bool(np.isfinite(total)) or bool(np.isfinite(array).all())
