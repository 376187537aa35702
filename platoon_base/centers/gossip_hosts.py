"""Gossip between hosts: messages that wait for the courier, and the state of received ones.

Each host has a queue of one message to every other host. A worker writes its parameters and half of
its weight there and continues to train. The courier sends the message, and keeps it until the other
courier has acknowledged the merge. The receiver records the number of each stripe before it merges
it: a message that arrives twice, after a reconnect or a courier's restart, is merged once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.centers.overwrites import Overwrites
from platoon_base.centers.stripes import copy_all
from platoon_base.layout import ALIGNMENT, Layout
from platoon_base.shm.segments import Segment
from platoon_base.views import array_on

__all__ = ["HostsMemory", "Message", "Road", "hosts_bytes", "new_life"]

Array = np.ndarray[Any, Any]

_HEAD = np.dtype([("life", "u8"), ("number", "u8"), ("index", "u8"), ("stamp", "u8")])
_ROAD = np.dtype([("workers", "u8"), ("full", "u8"), ("life", "u8"), ("spare", "u8")])
_PAGE = 4096


def new_life() -> int:
    """Return a random id of a host's memory, which distinguishes its messages from earlier ones."""
    return int.from_bytes(os.urandom(7), "little") + 1


def _aligned(size_bytes: int, to: int = ALIGNMENT) -> int:
    return -(-size_bytes // to) * to


class Message:
    """Parameters with a weight for each stripe, 0 where there is nothing to merge."""

    def __init__(self, layout: Layout, stripes: int, buffer: Any = None, start: int = 0) -> None:
        size_bytes = self.size_bytes(layout, stripes)
        buffer = bytearray(size_bytes) if buffer is None else buffer
        whole = array_on(buffer, (size_bytes,), np.uint8, start)
        self.buffer = memoryview(whole)
        self._head = array_on(buffer, (), _HEAD, start)
        self.weights: Array = array_on(buffer, (stripes,), "u8", start + ALIGNMENT)
        self.values = layout.views(buffer, start + ALIGNMENT + _aligned(8 * stripes))

    @staticmethod
    def size_bytes(layout: Layout, stripes: int) -> int:
        return ALIGNMENT + _aligned(8 * stripes) + layout.nbytes

    @property
    def life(self) -> int:
        """Id of the sender's memory, see `new_life`."""
        return int(self._head["life"])

    @property
    def number(self) -> int:
        """Number of the message in its queue, from 1."""
        return int(self._head["number"])

    @property
    def index(self) -> int:
        """Index of the receiver among the live workers of its host, by rank."""
        return int(self._head["index"])

    @property
    def stamp(self) -> int:
        """Version of the latest overwrite the sender had, see `Overwrites`."""
        return int(self._head["stamp"])

    def write(self, life: int, index: int, stamp: int, weights: Sequence[int], values: Sequence[Array]) -> None:
        """Write the next message."""
        copy_all(self.values, values)
        self.weights[...] = weights
        head = self._head
        head["life"], head["number"], head["index"], head["stamp"] = life, self.number + 1, index, stamp


class Road:
    """Queue of one message to another host; a worker that writes the message holds the lock."""

    def __init__(self, host: int, segment: Segment, lock_byte: int, words: Any, message: Message) -> None:
        self.host, self.message = host, message
        self._segment, self._lock_byte, self._words = segment, lock_byte, words

    @property
    def workers(self) -> int:
        """Number of possible receivers: live workers of a reachable host."""
        return int(self._words["workers"])

    @workers.setter
    def workers(self, count: int) -> None:
        self._words["workers"] = count

    @property
    def full(self) -> bool:
        """Whether a message waits, is being sent, or is not acknowledged."""
        return bool(self._words["full"])

    def claim(self) -> bool:
        """Try to reserve the queue without waiting; on success the caller must `release` it."""
        if self.full or not self._segment.try_lock(self._lock_byte):
            return False
        if self.full:  # Another worker posted before the lock was acquired.
            self.release()
            return False
        return True

    def release(self) -> None:
        self._segment.unlock(self._lock_byte)

    def post(self) -> None:
        """Pass the written message to the courier."""
        self._words["full"] = 1

    def clear(self) -> None:
        """Free the queue for the next message."""
        self.message.weights[...] = 0
        self._words["full"] = 0


class HostsMemory:
    """Part of a host's shared memory about other hosts: queues, merged messages, the consensus."""

    def __init__(self, segment: Segment, layout: Layout, stripes: int, header: Any, start: int) -> None:
        self._layout, self._stripes, self._header = layout, stripes, header
        hosts, here = int(header["hosts"]), int(header["host"])
        self._roads_words: Array = array_on(segment.buffer, (hosts,), _ROAD, start)
        at = start + _aligned(_ROAD.itemsize * hosts)
        # By host and stripe: number of the latest message whose merge has at least begun.
        self.merged: Array = array_on(segment.buffer, (hosts, stripes), "u8", at)
        at += _aligned(8 * hosts * stripes)
        self.mean = layout.views(segment.buffer, at)  # Latest consensus of all hosts.
        at += layout.nbytes
        self.roads: dict[int, Road] = {}
        for host in (host for host in range(hosts) if host != here):
            message = Message(layout, stripes, segment.buffer, at)
            lock_byte = start + _ROAD.itemsize * host
            self.roads[host] = Road(host, segment, lock_byte, self._roads_words[host], message)
            at += Message.size_bytes(layout, stripes)
        self.overwrites = Overwrites(header)

    @property
    def life(self) -> int:
        return int(self._header["life"])

    def new_message(self) -> Message:
        return Message(self._layout, self._stripes)

    def has_heard(self, host: int, life: int) -> bool:
        """Return whether `merged` refers to the messages of this ``life`` of a host's memory."""
        return bool(self._roads_words["life"][host] == life)

    def merged_of(self, host: int, life: int) -> Array:
        """Return a host's row of `merged`; reset it if the host's memory has a new ``life``."""
        row: Array = self.merged[host]
        if not self.has_heard(host, life):
            row[...] = 0
            self._roads_words["life"][host] = life
        return row

    @property
    def agreed(self) -> bool:
        """Whether `mean` is the current consensus: no worker of this host has trained since."""
        return bool(self._header["valid"])

    @agreed.setter
    def agreed(self, valid: bool) -> None:
        if valid != bool(self._header["valid"]):
            self._header["valid"] = valid

    @property
    def made(self) -> int:
        """Number of the round of `mean`."""
        return int(self._header["mean"])

    @made.setter
    def made(self, number: int) -> None:
        self._header["mean"] = number


def hosts_bytes(layout: Layout, stripes: int, hosts: int) -> int:
    """Return the size of `HostsMemory` in whole pages; 0 for a job on one host."""
    if hosts < 2:
        return 0
    words = _aligned(_ROAD.itemsize * hosts) + _aligned(8 * hosts * stripes)
    messages = (hosts - 1) * Message.size_bytes(layout, stripes)
    return _aligned(words + layout.nbytes + messages, _PAGE)
