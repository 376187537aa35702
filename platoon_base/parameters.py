"""A common interface for parameters: NumPy arrays, tensors, device arrays, shared variables.

A parameter is changed in place if its memory is accessible, and copied otherwise. Objects are
recognized by their methods, so no framework is imported here.
"""

from __future__ import annotations

import abc
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from platoon_base.device_arrays import Order, is_device_array, is_gpu_array, memory_order
from platoon_base.dtypes import Array
from platoon_base.errors import ConfigurationError
from platoon_base.frameworks.registered import such_as_parameters
from platoon_base.layout import Layout, require_plain


class Parameter(Protocol):
    """The methods of a parameter; adapters' objects that have them are used unchanged.

    On a device it may also have ``prefetch()``, which starts the copy that `borrow` waits for, and
    ``flush()``, which waits for the copy that `give_back` has started. All copies are then queued
    before the first wait.
    """

    name: str

    def borrow(self) -> Array:
        """Return the value: the memory itself where possible, a contiguous copy otherwise."""
        ...

    def give_back(self, array: Array) -> None:
        """Make ``array``, which `borrow` or `on_device` returned, the value."""
        ...

    def memory(self) -> Array | None:
        """Return the memory of the value, or None if it is not accessible."""
        ...

    def on_device(self) -> Any:
        """Return a GpuArray or `CudaArray` of the value, memory or copy; None on the host."""
        ...


def is_tensor(array: Any) -> bool:
    """Return whether an array is a tensor of torch, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def assign(array: Any, values: Any) -> None:
    """Do ``array[...] = values``, also for 0-d GpuArrays, which pygpu does not index."""
    if array.shape or not is_gpu_array(array):
        array[...] = values
    else:
        array.reshape((1,))[...] = values.reshape((1,))


class Borrowed(Sequence[Any]):
    """Arrays that were borrowed together. A slice or a list of indices selects a part, a view."""

    # A new object whenever shapes, dtypes or devices have changed; None if that is unknown.
    like: object = None

    @abc.abstractmethod
    def __getitem__(self, index: Any) -> Any: ...

    def copies(self) -> list[Any]:
        """Return copies of the values, for `restore`."""
        return [array.copy() for array in self]

    def restore(self, copies: list[Any]) -> None:
        for array, value in zip(self, copies):
            assign(array, value)

    def change(self, queue: Callable[..., None], may_wait: bool = False) -> Any:
        """Queue work that changes arrays on a device; see `DeviceRuntime.change`."""
        self[0].change(self, queue)


class BorrowedArrays(list[Any], Borrowed):
    """Arrays that were borrowed one by one."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return BorrowedArrays(list.__getitem__(self, i) for i in index)
        found = list.__getitem__(self, index)
        return BorrowedArrays(found) if isinstance(index, slice) else found


class Group(Protocol):
    """Borrows parameters together, if all have the same object as their ``group``."""

    def borrow(self, parameters: Sequence[Any]) -> list[Array] | None:
        """Return `Parameter.borrow` of each; None if each must be called."""
        ...

    def give_back(self, parameters: Sequence[Any], arrays: Sequence[Any]) -> bool:
        """Call `Parameter.give_back` for each; return False if each must be called."""
        ...

    def borrow_on_device(self, parameters: Sequence[Any]) -> Borrowed | None:
        """Return `Parameter.on_device` of each; None if each must be called."""
        ...

    def share_on_device(self, parameters: Sequence[Any]) -> None:
        """Prepare for synchronization with a center on devices."""
        ...


class _NumPyParameter:
    def __init__(self, array: Array, name: str) -> None:
        self.name = name
        self._array = array

    def borrow(self) -> Array:
        # np.ascontiguousarray would change the shape of a scalar to (1,).
        return self._array if self._array.flags.c_contiguous else np.array(self._array, order="C")

    def give_back(self, array: Array) -> None:
        if array is not self._array:
            self._array[...] = array

    def memory(self) -> Array | None:
        return self._array

    def on_device(self) -> None:
        return None


class _DeviceParameter:
    def __init__(self, array: Any, name: str) -> None:
        self.name = name
        self._array = array

    def borrow(self) -> Array:
        return np.array(self._array, order="C")

    def give_back(self, array: Array) -> None:
        if array is not self._array:
            assign(self._array, array)

    def memory(self) -> None:
        return None

    def on_device(self) -> Any:
        return self._array


class _SharedVariable:
    """Anything with Theano's ``get_value`` and ``set_value``, on the host or on a device."""

    def __init__(self, variable: Any, name: str) -> None:
        self.name = name
        self._variable = variable

    def borrow(self) -> Array:
        value = self._value()
        if isinstance(value, np.ndarray) and value.flags.c_contiguous and value.flags.writeable:
            return value
        return np.array(self._variable.get_value(borrow=True), order="C")

    def give_back(self, array: Array) -> None:
        if array is not self._value():
            self._variable.set_value(array, borrow=True)

    def memory(self) -> Array | None:
        value = self._value()
        return value if isinstance(value, np.ndarray) else None

    def on_device(self) -> Any:
        value = self._value()
        return value if is_device_array(value) else None

    def _value(self) -> Any:
        return self._variable.get_value(borrow=True, return_internal_type=True)


def _wrap(parameter: Any, index: int) -> Parameter:
    if all(callable(getattr(parameter, hook, None)) for hook in ("borrow", "give_back", "memory", "on_device")):
        found: Parameter = parameter
        return found
    name = getattr(parameter, "name", None) or f"parameter {index}"
    if isinstance(parameter, tuple) and len(parameter) == 2 and isinstance(parameter[0], str):
        name, parameter = parameter
    if isinstance(parameter, np.ndarray):
        if not parameter.flags.writeable:
            raise ConfigurationError(f"{name} is a read-only array, which a synchronization would change: pass a copy")
        return _NumPyParameter(parameter, name)
    if is_tensor(parameter):
        from platoon_base.torch_arrays import TensorParameter

        return TensorParameter(parameter, name)
    if is_device_array(parameter):
        return _DeviceParameter(parameter, name)
    if callable(getattr(parameter, "get_value", None)) and callable(getattr(parameter, "set_value", None)):
        return _SharedVariable(parameter, name)
    raise ConfigurationError(
        f"got {type(parameter).__name__} as {name}: parameters must be NumPy arrays, Theano "
        "shared variables or tensors of torch; pass the object that holds the "
        f"values{such_as_parameters()}"
    )


class Parameters:
    """The parameters of one model, in a fixed order; the last ``moments`` ones are moments.

    Pairs of a name and a parameter are accepted too, such as ``model.named_parameters()``. All
    dtypes are floats, and no parameter appears twice.
    """

    def __init__(self, parameters: Iterable[Any], moments: int = 0) -> None:
        single = isinstance(parameters, np.ndarray) or is_tensor(parameters) or is_device_array(parameters)
        if single or hasattr(parameters, "get_value"):
            raise ConfigurationError("got one parameter: pass a list, even of one")
        if not isinstance(parameters, Iterable):
            raise ConfigurationError(
                f"got {type(parameters).__name__} as parameters: pass a list of them, such as model.named_parameters() "
                "of torch"
            )
        self._parameters = [_wrap(p, i) for i, p in enumerate(parameters)]
        self._prefetches = [p.prefetch for p in self._parameters if hasattr(p, "prefetch")]
        self._flushes = [p.flush for p in self._parameters if hasattr(p, "flush")]
        groups = {id(found): found for found in (getattr(p, "group", None) for p in self._parameters)}
        self._group: Group | None = next(iter(groups.values())) if len(groups) == 1 else None
        # The latest arrays on a device; the same objects need no new checks.
        self._placed: list[weakref.ref[Any]] = []
        self._like: object = None
        arrays = self.borrow()
        for parameter, array in zip(self._parameters, arrays):
            require_plain(parameter.memory(), parameter.name)
            if array.dtype.kind != "f" or not array.dtype.isnative:
                raise ConfigurationError(
                    f"{parameter.name} is of dtype {array.dtype}: only floating-point parameters "
                    "of this machine's byte order can be averaged; leave counters and seeds out, "
                    "and keep complex numbers as pairs of real numbers"
                )
        self._require_apart()
        self.layout = Layout.of(arrays, [p.name for p in self._parameters], moments)
        if not any(array.size for array in arrays):
            raise ConfigurationError("all parameters are empty: there is nothing to synchronize")

    def borrow(self) -> BorrowedArrays:
        """Return C-contiguous values: the memory of the parameters itself where possible."""
        found = None if self._group is None else self._group.borrow(self._parameters)
        if found is None:
            for prefetch in self._prefetches:
                prefetch()
            found = [p.borrow() for p in self._parameters]
        return BorrowedArrays(found)

    def give_back(self, arrays: Sequence[Array]) -> None:
        """Make changed arrays, which `borrow` or `borrow_on_device` returned, the values."""
        if self._group is not None and self._group.give_back(self._parameters, arrays):
            return
        for parameter, array in zip(self._parameters, arrays):
            parameter.give_back(array)
        for flush in self._flushes:
            flush()

    @property
    def frozen(self) -> set[int]:
        """The indices of parameters that are known not to be trained, by torch's requires_grad."""
        return {i for i, parameter in enumerate(self._parameters) if getattr(parameter, "frozen", False)}

    @property
    def context(self) -> Any:
        """The common context, if all parameters are dense device arrays; otherwise None."""
        arrays = self.borrow_on_device()
        contexts = {array.context.ptr: array.context for array in arrays if array is not None}
        if len(contexts) != 1 or any(array is None or memory_order(array) is None for array in arrays):
            return None
        return next(iter(contexts.values()))

    def off_device(self) -> str:
        """Return why a parameter keeps a center off the device; empty if none does."""
        first: Any = None
        for spec, array in zip(self.layout.specs, self.borrow_on_device()):
            if array is None:
                return f"{spec.name} is in host memory"
            if memory_order(array) is None:
                return f"{spec.name} is not contiguous (a transposed or sliced view)"
            first = array.context if first is None else first
            if array.context.ptr != first.ptr:
                return f"{spec.name} is on another device than {self.layout.specs[0].name}"
        return "" if first is None or first.kind == b"cuda" else f"{self.layout.specs[0].name} is not on a CUDA device"

    def borrow_on_device(self) -> Borrowed:
        """Return the values as device arrays, for `give_back`; None for each on the host."""
        found = None if self._group is None else self._group.borrow_on_device(self._parameters)
        if found is not None:
            return found
        arrays = BorrowedArrays(p.on_device() for p in self._parameters)
        known = len(arrays) == len(self._placed)
        if not (known and all(array is not None and array is placed() for array, placed in zip(arrays, self._placed))):
            try:
                self._placed, self._like = [weakref.ref(array) for array in arrays], object()
            except TypeError:  # Some values are on the host, or are arrays of pygpu.
                self._placed, self._like = [], None
        arrays.like = self._like
        return arrays

    def orders_on_device(self) -> list[Order | None]:
        """Return the order in memory of each parameter on the device."""
        return [memory_order(array) for array in self.borrow_on_device()]

    def share_on_device(self, orders: Sequence[Order]) -> list[str]:
        """Prepare for a center on devices; return the names of those that are copied, as their memory differs."""
        if self._group is not None:
            self._group.share_on_device(self._parameters)
        pairs = [(p, p.keep_order, order) for p, order in zip(self._parameters, orders) if hasattr(p, "keep_order")]
        return [parameter.name for parameter, keep_order, order in pairs if keep_order(order)]

    def _require_apart(self) -> None:
        placed = [(*_extent(m), p.name, m) for p in self._parameters if (m := p.memory()) is not None and m.size]
        before: list[Any] = []
        for start, stop, name, array in sorted(placed, key=lambda place: place[0]):
            if _overlaps_itself(array):
                raise ConfigurationError(
                    f"got {name}, several elements of which share memory, as with broadcast_to "
                    "and as_strided, so a synchronization would change them several times: pass "
                    "a copy"
                )
            before = [place for place in before if place[1] > start]
            for _, _, other, earlier in before:
                if np.shares_memory(array, earlier):
                    raise ConfigurationError(
                        f"{other} and {name} share memory, which would be synchronized twice: pass each parameter once"
                    )
            before.append((start, stop, name, array))

    def __len__(self) -> int:
        return len(self._parameters)


def _extent(array: Array) -> tuple[int, int]:
    reach = [(n - 1) * stride for n, stride in zip(array.shape, array.strides)]
    low, high = (sum(f(each, 0) for each in reach) for f in (min, max))
    return array.ctypes.data + low, array.ctypes.data + high + array.itemsize


def _overlaps_itself(array: Array) -> bool:
    reach = array.itemsize
    for stride, n in sorted((abs(stride), n) for stride, n in zip(array.strides, array.shape) if n > 1):
        if stride < reach:
            offsets = sum(np.ix_(*(np.arange(n) * stride for n, stride in zip(array.shape, array.strides))))
            return np.unique(offsets).size < array.size
        reach += stride * (n - 1)
    return False
