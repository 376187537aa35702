"""`function`: a compiled function that a script calls as usual and that runs on all workers."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import theano
from theano.compile import SharedVariable

from platoon_base.data.shared_data import SharedData
from platoon_base.errors import ConfigurationError
from platoon_base.job.joining import connect
from platoon_base.theano_ops.base import JobBound
from platoon_base.theano_ops.function_graph import (
    Combined,
    average_updates,
    averaged_grads,
    indexed,
    pairs_of,
    require_reductions,
    start_variables,
    with_default_updates,
    with_givens,
)
from platoon_base.theano_ops.function_rows import (
    Header,
    InputRows,
    ResidentRows,
    RowSpec,
    exchange,
    input_checksum,
    refuse,
    require_same_values,
    split,
)
from platoon_base.timeouts import DEFAULT_TIMEOUT_S
from platoon_base.worker.handle import Worker


def function(
    inputs: Sequence[Any],
    outputs: Any = None,
    updates: Any = None,
    *,
    params: Sequence[Any] | None = None,
    loss: Any = None,
    reduce: Any = "mean",
    average: bool = True,
    broadcast: Sequence[Any] = (),
    sliceable_shareds: Sequence[Any] = (),
    worker: Worker | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    **options: Any,
) -> Function:
    """Compile a function that all workers call with the same data, each for its part of the rows.

    The script is the same on all workers: a call scatters its inputs, computes, combines the
    outputs, and leaves the same parameters everywhere. Outputs are bitwise equal on all workers, so
    all scripts take the same branches. Up to rounding, they are those of one process with all rows:

    ::

        output   := sum_i n_i o_i / sum_i n_i        (o_i is worker i's output from n_i rows)
        gradient := sum_i n_i g_i / sum_i n_i        (``updates`` is a function of gradients)
        variable := sum_i n_i v_i / sum_i n_i        (``updates`` are new values v_i)

    All workers call this function at the same point of their scripts. It copies the first worker's
    values of all shared variables in the graph to the others.

    Parameters
    ----------
    inputs : list of Theano variable
        Those with axes are scattered by rows; the others go to all workers.
    outputs : Theano expression or list of them, optional
    updates : mapping, list of pairs, or callable
        A callable gets the averaged gradients and ``params``, and returns updates, as all functions
        of `lasagne.updates` do: exact for every optimizer. New values are averaged: exact for
        optimizers that are linear in the gradients (SGD, momentum, Nesterov), not for Adam, RMSprop
        and the like. Values that are computed from all-reduced gradients are unchanged.
    params : list of Theano shared variable, optional
        Passed to ``updates``.
    loss : scalar Theano expression, optional
        The expression to differentiate. The default is the first output.
    reduce : {"mean", "sum", "max", "min", "prod", "gather", None} or list of them
        For all outputs, or for each. "mean" is for means over rows and weighs by rows; "gather"
        concatenates outputs with one item for each row; None returns this worker's own.
    average : bool
        Whether the loss is a mean over rows; False for a sum, whose gradients are added up.
    broadcast : list of Theano variable
        Inputs with axes that go to all workers as a whole.
    sliceable_shareds : list of Theano shared variable
        Data sets in the workers' own memories, from `scatter`. Calls select rows by ``batch_s``.
        They are used in the expressions, or replace variables by ``givens``.
    worker : Worker, default ``connect()``
    timeout_s : float
        Bound on each wait for the other workers.
    **options
        Passed to `theano.function`, such as ``givens`` or ``allow_input_downcast``.

    Raises
    ------
    ConfigurationError
        If the arguments contradict each other.
    LayoutMismatchError
        On every worker, if the graph of one has other shared variables.

    Examples
    --------
    >>> train = function([x, y], loss, lasagne.updates.adam, params=params)        # doctest: +SKIP
    >>> for rows in batches:                                                       # doctest: +SKIP
    ...     print(train(images, labels, batch=rows))
    """
    worker = connect() if worker is None else worker
    single = isinstance(outputs, theano.Variable)
    wanted = [outputs] if single else list(outputs or ())
    reductions = require_reductions(reduce, len(wanted))
    _require_shared(sliceable_shareds)
    if not set(broadcast) <= set(inputs):
        raise ConfigurationError(f"got broadcast={broadcast!r}: name some of the inputs, {inputs!r}")
    weight = theano.tensor.scalar("the rows of this worker, over the mean", theano.config.floatX)
    if callable(updates):
        grads = averaged_grads(wanted[0] if loss is None and wanted else loss, params, weight, average, worker)
        pairs = pairs_of(updates(grads, params))
    else:
        pairs = pairs_of(updates)
    if options.get("givens"):
        wanted, pairs = with_givens(wanted, pairs, options["givens"])
    options.pop("givens", None)
    trains = bool(pairs)
    pairs = average_updates(pairs, wanted, weight, worker)
    if sliceable_shareds:
        pairs = with_default_updates(pairs, wanted)
    graph = [*wanted, *(value for _, value in pairs)]
    start_variables(graph, [variable for variable, _ in pairs], sliceable_shareds, worker, timeout_s)
    scattered = [i for i, v in enumerate(inputs) if getattr(v, "ndim", 0) and v not in set(broadcast)]
    traced = Graph(list(inputs), scattered, graph, [variable for variable, _ in pairs], weight, list(sliceable_shareds))
    return Function(traced, reductions, single, trains, options, worker, timeout_s)


def _require_shared(variables: Sequence[Any]) -> None:
    if isinstance(variables, theano.Variable) or not all(isinstance(v, SharedVariable) for v in variables):
        raise ConfigurationError(
            f"got sliceable_shareds={variables!r}: pass a list of shared variables, such as [scatter(images)]"
        )


class Graph(NamedTuple):
    inputs: list[Any]
    # Indices of the inputs that are scattered by rows.
    scattered: list[int]
    # The outputs, followed by the new values of `updated`.
    values: list[Any]
    updated: list[Any]
    # The number of this worker's rows, divided by the mean number.
    weight: Any
    data: list[Any]


class Function(JobBound):
    """A compiled function over all workers; `function` makes it."""

    def __init__(
        self,
        graph: Graph,
        reductions: list[str | None],
        single: bool,
        trains: bool,
        options: dict[str, Any],
        worker: Worker,
        timeout_s: float,
    ) -> None:
        self.worker = worker
        inputs, self._scattered, self._values, updated, self._weight, data = graph
        self._inputs, self._updated, self._data = inputs, updated, data
        self._reductions, self._single, self._trains = reductions, single, trains
        self._options = options
        self._weights = self._weight in theano.gof.graph.inputs(self._values)
        self._timeout_s = timeout_s
        self._described = (
            f"of inputs {inputs}, {len(reductions)} outputs, {len(updated)} updates and {len(data)} data sets"
        )
        self._checksum = zlib.crc32(f"{self._described} {[getattr(v, 'type', None) for v in inputs]}".encode())
        self._buffers: dict[int, Any] = {}
        self._compiled: dict[str, Any] = {}
        if not data:
            self._compiled["no data"] = self._compile([], lambda variable: variable)

    def __call__(self, *values: Any, batch: Any = None, batch_s: Any = None, num_slices: int = 1) -> Any:
        """Compute on all workers; all of them call it with the same values.

        ``batch`` selects rows of the scattered inputs, and ``batch_s`` rows of each worker's own
        data sets: all by default, a slice, a list, or the first n. The first worker's selection
        counts for all, unless ``batch_s`` is a list with one selection for each worker. Without
        updates, ``num_slices`` is the number of calls that compute the rows, to save memory.

        If one worker refuses its arguments, all workers raise an error.
        """
        inputs, resident = self._agree(values, batch, batch_s, num_slices)
        counts = inputs.counts if inputs else resident.counts if resident else [1] * self.worker.global_size
        mine = counts[self.worker.global_rank]
        weight = np.asarray(mine * len(counts) / sum(counts), theano.config.floatX)
        combined = Combined(self._reductions)
        own = split(resident.counts[self.worker.global_rank], num_slices) if resident else []
        for part, (start, stop) in enumerate(split(mine, num_slices)):
            arguments = self._arguments(values, inputs, start, stop)
            rows = resident.take(*own[min(part, len(own) - 1)]) if resident else None
            results = self._call(arguments, rows, [weight] if self._weights else [])
            combined.add(results, max(1, stop - start), counted=stop > start)
        if self._trains:
            self.worker.progress(steps=1)
        found = combined.over(self.worker, counts, self._timeout_s)
        return found[0] if self._single else found

    def _agree(
        self, values: Sequence[Any], batch: Any, batch_s: Any, num_slices: int
    ) -> tuple[InputRows | None, ResidentRows | None]:
        """Check the arguments here and against the others'; all workers raise if one refuses."""
        worker, timeout_s = self.worker, self._timeout_s
        try:
            self._require_call(values, batch, batch_s, num_slices)
            inputs = InputRows([values[i] for i in self._scattered], batch, self._buffers) if self._scattered else None
            resident = ResidentRows(self._data, batch_s, worker) if self._data else None
            header = Header(
                0, self._checksum, self._checksum_of(values),
                inputs.selection.spec if inputs else RowSpec(), resident.selection.spec if resident else RowSpec(),
            )  # fmt: skip
        except Exception as exc:
            refuse(worker, exc, timeout_s)
            raise
        every = exchange(worker, header, self._described, timeout_s)
        require_same_values(worker, every, self._inputs, values, self._scattered, timeout_s)
        if inputs:
            inputs.agree([header.batch for header in every], worker, timeout_s)
        if resident:
            resident.agree([header.batch_s for header in every], worker, timeout_s)
        return inputs, resident

    def _checksum_of(self, values: Sequence[Any]) -> int:
        if self.worker.global_size == 1:
            return 0
        return hash(tuple(input_checksum(value, whole=i not in self._scattered) for i, value in enumerate(values)))

    @property
    def compiled(self) -> list[Any]:
        """The functions compiled so far; with data sets, one for slices and one for lists."""
        return list(self._compiled.values())

    def _arguments(self, values: Sequence[Any], inputs: InputRows | None, start: int, stop: int) -> list[Any]:
        arguments = [value.array if isinstance(value, SharedData) else value for value in values]
        if inputs is not None:
            for i, rows in zip(self._scattered, inputs.take(start, stop)):
                arguments[i] = rows
        return arguments

    def _call(self, arguments: list[Any], rows: Any, weight: list[Any]) -> list[Any]:
        if rows is None:
            found = self._compiled["no data"](*arguments, *weight)
        elif isinstance(rows, slice):
            ends = theano.tensor.lscalar("start"), theano.tensor.lscalar("stop")
            if "slice" not in self._compiled:
                self._compiled["slice"] = self._compile(list(ends), lambda variable: variable[ends[0] : ends[1]])
            found = self._compiled["slice"](*arguments, rows.start, rows.stop, *weight)
        else:
            numbers = theano.tensor.lvector("rows")
            if "list" not in self._compiled:
                self._compiled["list"] = self._compile([numbers], lambda variable: variable[numbers])
            found = self._compiled["list"](*arguments, rows, *weight)
        return list(found)

    def _compile(self, more: list[Any], index: Any) -> Any:
        values = indexed(self._values, self._data, index)
        count = len(self._reductions)
        return theano.function(
            [*self._inputs, *more, *([self._weight] if self._weights else [])],
            values[:count],
            updates=list(zip(self._updated, values[count:])),
            **self._options,
        )

    def _require_call(self, values: Sequence[Any], batch: Any, batch_s: Any, num_slices: int) -> None:
        if len(values) != len(self._inputs):
            raise ConfigurationError(f"got {len(values)} values for {len(self._inputs)} inputs: pass one for each")
        if num_slices < 1:
            raise ConfigurationError(f"got num_slices={num_slices!r}: it counts calls and must be at least 1")
        if num_slices > 1 and self._trains:
            raise ConfigurationError(
                f"got num_slices={num_slices} for a function with updates, which would be applied "
                f"{num_slices} times: slice only evaluations, and train on smaller batches"
            )
        if batch is not None and not self._scattered:
            raise ConfigurationError(
                "got batch, which selects rows of scattered inputs, and no input is scattered: leave it out"
            )
        if batch_s is not None and not self._data:
            raise ConfigurationError(
                "got batch_s, and the function has no data sets: name them in sliceable_shareds when you create it"
            )


def scatter(data: Any, name: str | None = None, *, dtype: Any = None, worker: Worker | None = None) -> Any:
    """Put this worker's rows of a data set into a Theano shared variable, on its GPU if it has one.

    Worker r of N holds the rows r, r + N, r + 2N, ..., as from `Worker.shard`, so all workers
    together hold the data once. Steps that select rows there (`function`, ``batch_s``) copy nothing
    from the host.

    Parameters
    ----------
    data : array or SharedData
        All rows, the same on every worker.
    name : str, optional
    dtype : dtype, optional
        Dtype of the variable.
    worker : Worker, default ``connect()``

    Raises
    ------
    ConfigurationError
        If there are fewer rows than workers, or another worker has passed other data.
    """
    worker = connect() if worker is None else worker
    if len(data) < worker.global_size:
        raise ConfigurationError(
            f"got {len(data)} rows for {worker.global_size} workers: each needs at least one; launch fewer workers"
        )
    whole = data.array if isinstance(data, SharedData) else np.asarray(data)
    worker.advanced.require_same_data(whole)
    rows = whole[worker.global_rank :: worker.global_size]
    return theano.shared(np.array(rows, dtype, order="C"), name=name, borrow=True)
