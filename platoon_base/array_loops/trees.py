"""Nested parameters of NumPy and JAX: their leaves with names, on the host and back."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from platoon_base.errors import ConfigurationError

Array = np.ndarray[Any, Any]


def jax() -> Any:
    """Return the module, if the script has imported it."""
    return sys.modules.get("jax")


def has_gpu() -> bool:
    """Return whether JAX computes on an accelerator by default."""
    return jax() is not None and jax().default_backend() != "cpu"


class Tree(NamedTuple):
    names: list[str]  # Names of the leaves, such as "layers/0/weight".
    leaves: list[Any]
    rebuild: Callable[[Sequence[Any]], Any]

    def floats(self) -> Tree:
        """Return a tree with the leaves that are floats or complex numbers.

        Python's numbers within a compiled step are constants of it, such as the rate of a Dropout.
        """
        fixed = (float, complex) if is_traced(self.leaves) else ()
        chosen = [
            i for i, leaf in enumerate(self.leaves) if kind_of(leaf) in ("f", "c") and not isinstance(leaf, fixed)
        ]
        return self.only(chosen)

    def only(self, chosen: Sequence[int]) -> Tree:
        """Return a tree with some leaves, whose ``rebuild`` keeps the others."""

        def rebuild(leaves: Sequence[Any]) -> Any:
            every = list(self.leaves)
            for i, leaf in zip(chosen, leaves):
                every[i] = leaf
            return self.rebuild(every)

        return Tree([self.names[i] for i in chosen], [self.leaves[i] for i in chosen], rebuild)

    def beside(self, values: Sequence[Any]) -> Tree:
        """Return a tree with other leaves behind these, whose ``rebuild`` returns a tuple with them."""
        count = len(self.leaves)
        names = [f"value {i}" for i in range(len(values))]
        rebuild = lambda leaves: (self.rebuild(leaves[:count]), *leaves[count:])  # noqa: E731
        return Tree([*self.names, *names], [*self.leaves, *values], rebuild)

    @property
    def shape(self) -> tuple[Any, ...]:
        """A mark of this kind of tree."""
        return tuple(zip(self.names, map(np.shape, self.leaves)))


def tree_of(tree: Any) -> Tree:
    """Return the leaves of nested lists, tuples and dicts, and with JAX of all its pytrees."""
    if jax() is None:
        names, leaves = [], []
        for name, leaf in _walk(tree, ""):
            names.append(name)
            leaves.append(leaf)
        return Tree(names, leaves, lambda new: _rebuilt(tree, iter(new)))
    found, structure = jax().tree_util.tree_flatten_with_path(tree)
    return Tree([_name(path) for path, _ in found], [leaf for _, leaf in found], structure.unflatten)


def _name(path: Sequence[Any]) -> str:
    """Return a path as text; Flax stores a variable both as it is and as its ``value``."""
    words = [
        str(next((getattr(key, name) for name in ("key", "idx", "name") if hasattr(key, name)), key)) for key in path
    ]
    return "/".join(words[:-1] if words[-1:] == ["value"] else words)


def _walk(tree: Any, name: str) -> Any:
    if isinstance(tree, dict):
        for key in tree:
            yield from _walk(tree[key], f"{name}/{key}".lstrip("/"))
    elif isinstance(tree, (list, tuple)):
        for i, each in enumerate(tree):
            yield from _walk(each, f"{name}/{i}".lstrip("/"))
    elif tree is not None:
        yield name, tree


def _rebuilt(tree: Any, leaves: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _rebuilt(each, leaves) for key, each in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [_rebuilt(each, leaves) for each in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return None if tree is None else next(leaves)


def kind_of(leaf: Any) -> str:
    """Return the kind of a leaf's dtype: f, c, i, u or b; "key" for keys of JAX, else ""."""
    if isinstance(leaf, (float, complex)):
        return "c" if isinstance(leaf, complex) else "f"
    dtype = getattr(leaf, "dtype", None)
    if isinstance(dtype, np.dtype):
        return "f" if dtype.name.startswith(("bfloat", "float8")) else dtype.kind
    return "key" if str(dtype).startswith("key<") else ""


def is_traced(leaves: Sequence[Any]) -> bool:
    return jax() is not None and any(isinstance(leaf, jax().core.Tracer) for leaf in leaves)


def on_host(leaf: Any) -> Array:
    """Return a copy in C order; of bfloat16 as float32."""
    array = np.asarray(leaf)
    return np.array(array, np.float32 if array.dtype.kind == "V" else None, order="C")


def same_as(leaf: Any, value: Array) -> Any:
    """Return a value as an object like ``leaf``; an ndarray gets it in place."""
    if isinstance(leaf, np.ndarray) and leaf.flags.writeable:
        leaf[...] = value
        return leaf
    if isinstance(leaf, (np.ndarray, np.generic)):
        return np.asarray(value, leaf.dtype)[()]
    if isinstance(leaf, (float, complex)):
        return type(leaf)(value)
    new = jax().numpy.array(value, leaf.dtype, copy=True)
    return jax().device_put(new, leaf.sharding) if getattr(leaf, "committed", True) else new


def call_on_host(
    function: Callable[[list[Array]], list[Array]],
    leaves: Sequence[Any],
    guarded: Callable[[Callable[[list[Array]], list[Array]]], Callable[[list[Array]], list[Array]]],
    skips: Callable[[], bool] | None = None,
) -> list[Any]:
    """Return ``function(arrays)``, arrays of the same shapes, now or in the program being traced.

    Where ``skips()`` is true it returns ``leaves``, without copies. Programs call
    ``guarded(function)``.
    """
    if not is_traced(leaves):
        if skips is not None and skips():
            return list(leaves)
        found = function([on_host(leaf) for leaf in leaves])
        return [same_as(leaf, value) for leaf, value in zip(leaves, found)]
    try:
        callback = importlib.import_module("jax.experimental").io_callback
    except (ImportError, AttributeError) as exc:
        raise ConfigurationError("got a compiled step of an old jax, without io_callback: install jax>=0.4.14") from exc
    numpy = jax().numpy
    leaves = [numpy.asarray(leaf) for leaf in leaves]
    sent = [leaf.astype(np.float32) if leaf.dtype.kind == "V" else leaf for leaf in leaves]

    safely = guarded(function)

    def call(*values: Any) -> tuple[Array, ...]:
        return tuple(value.copy() for value in safely([on_host(value) for value in values]))

    def traced(*values: Any) -> Any:
        shapes = tuple(jax().ShapeDtypeStruct(value.shape, value.dtype) for value in values)
        return callback(call, shapes, *values, ordered=True)

    whole = importlib.import_module("jax.custom_batching").custom_vmap(traced)

    @whole.def_vmap  # type: ignore[untyped-decorator]
    def batched(size: int, are_batched: Sequence[bool], *values: Any) -> Any:
        """Call once for all models of an ensemble, as each element of an array is processed by itself."""
        every = [v if has else numpy.broadcast_to(v, (size, *v.shape)) for v, has in zip(values, are_batched)]
        return whole(*every), (True,) * len(every)

    if skips is None:
        found = whole(*sent)
    else:
        skipped = callback(lambda: np.bool_(skips()), jax().ShapeDtypeStruct((), np.bool_), ordered=True)
        found = jax().lax.cond(skipped, lambda *values: values, whole, *sent)
    return [value.astype(leaf.dtype) for leaf, value in zip(leaves, found)]
