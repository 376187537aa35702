"""Gossip over several hosts: messages that wait in a host's memory for its courier, and what has come from others.

Each host has a road to every other one, with room for one message. A worker puts its parameters there with half of its
weight, and trains on. The courier sends the message, and keeps it until the courier of the other host has acknowledged
that it is merged. That one writes down the number of each stripe that it merges before it does so: a message that comes
twice, as after a link was broken or a courier was started again, is merged once.
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
    """Return a number that no other memory of the job has, so that its messages are not taken for those of another."""
    return int.from_bytes(os.urandom(7), "little") + 1


def _aligned(size_bytes: int, to: int = ALIGNMENT) -> int:
    return -(-size_bytes // to) * to


class Message:
    """Parameters with their weights, as they are sent to another host.

    Parameters
    ----------
    layout : Layout
    stripes : int
    buffer : writable buffer, optional
        Where it lies, from byte ``start`` on; by default in memory of its own.
    start : int

    Attributes
    ----------
    buffer : memoryview
        All of it.
    weights : ndarray of uint64, one for each stripe
        0 where there is nothing to merge.
    values : list of ndarray
    """

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
        """Return the size of a message."""
        return ALIGNMENT + _aligned(8 * stripes) + layout.nbytes

    @property
    def life(self) -> int:
        """That of the sender's memory, see `new_life`."""
        return int(self._head["life"])

    @property
    def number(self) -> int:
        """Its number on its road, from 1."""
        return int(self._head["number"])

    @property
    def index(self) -> int:
        """Which of the living workers of the other host it is for, in the order of their ranks."""
        return int(self._head["index"])

    @property
    def stamp(self) -> int:
        """That of the latest overwrite that the sender knew; see `platoon_base.centers.overwrites`."""
        return int(self._head["stamp"])

    def write(self, life: int, index: int, stamp: int, weights: Sequence[int], values: Sequence[Array]) -> None:
        """Write the next message."""
        copy_all(self.values, values)
        self.weights[...] = weights
        head = self._head
        head["life"], head["number"], head["index"], head["stamp"] = life, self.number + 1, index, stamp


class Road:
    """The way to another host, with room for one message.

    Parameters
    ----------
    host : int
        The other one.
    segment : Segment
    lock_byte : int
        Whose lock a worker has that writes a message.
    words : structured scalar
    message : Message

    Attributes
    ----------
    host : int
    message : Message
    """

    def __init__(self, host: int, segment: Segment, lock_byte: int, words: Any, message: Message) -> None:
        self.host, self.message = host, message
        self._segment, self._lock_byte, self._words = segment, lock_byte, words

    @property
    def workers(self) -> int:
        """How many workers a message could be for: those that live there, while the host can be reached."""
        return int(self._words["workers"])

    @workers.setter
    def workers(self, count: int) -> None:
        self._words["workers"] = count

    @property
    def full(self) -> bool:
        """Whether a message waits, is being sent, or is not acknowledged."""
        return bool(self._words["full"])

    def claim(self) -> bool:
        """Reserve the room for a message, without waiting; False if there is none."""
        if self.full or not self._segment.try_lock(self._lock_byte):
            return False
        if self.full:  # another worker was here in between
            self.release()
            return False
        return True

    def release(self) -> None:
        """End what `claim` began."""
        self._segment.unlock(self._lock_byte)

    def post(self) -> None:
        """Leave the message that was written to the courier."""
        self._words["full"] = 1

    def clear(self) -> None:
        """Make room for the next message."""
        self.message.weights[...] = 0
        self._words["full"] = 0


class HostsMemory:
    """The part of a host's memory that is about other hosts.

    Parameters
    ----------
    segment : Segment
    layout : Layout
    stripes : int
    header : structured scalar
        With ``hosts``, ``host``, ``life``, ``valid``, ``mean`` and the words of `Overwrites`.
    start : int
        Where this part begins.

    Attributes
    ----------
    roads : dict of int to Road
        By host.
    merged : ndarray of uint64, shape (hosts, stripes)
        The number of the latest message of a host that was merged, or begun to be, for each stripe.
    mean : list of ndarray
        The consensus of all hosts, as their couriers have agreed on it last.
    overwrites : Overwrites
    """

    def __init__(self, segment: Segment, layout: Layout, stripes: int, header: Any, start: int) -> None:
        self._layout, self._stripes, self._header = layout, stripes, header
        hosts, here = int(header["hosts"]), int(header["host"])
        self._roads_words: Array = array_on(segment.buffer, (hosts,), _ROAD, start)
        at = start + _aligned(_ROAD.itemsize * hosts)
        self.merged: Array = array_on(segment.buffer, (hosts, stripes), "u8", at)
        at += _aligned(8 * hosts * stripes)
        self.mean = layout.views(segment.buffer, at)
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
        """See `new_life`."""
        return int(self._header["life"])

    def new_message(self) -> Message:
        """Return memory for a message that comes."""
        return Message(self._layout, self._stripes)

    def has_heard(self, host: int, life: int) -> bool:
        """Return whether `merged` is about the messages of a host whose memory has this life."""
        return bool(self._roads_words["life"][host] == life)

    def merged_of(self, host: int, life: int) -> Array:
        """Return the row of `merged` of a host whose memory has this life; an earlier one is forgotten."""
        row: Array = self.merged[host]
        if not self.has_heard(host, life):
            row[...] = 0
            self._roads_words["life"][host] = life
        return row

    @property
    def agreed(self) -> bool:
        """Whether `mean` is the consensus of all hosts: no worker of this one has trained since."""
        return bool(self._header["valid"])

    @agreed.setter
    def agreed(self, valid: bool) -> None:
        if valid != bool(self._header["valid"]):
            self._header["valid"] = valid

    @property
    def made(self) -> int:
        """The number of the round that `mean` is of."""
        return int(self._header["mean"])

    @made.setter
    def made(self, number: int) -> None:
        self._header["mean"] = number


def hosts_bytes(layout: Layout, stripes: int, hosts: int) -> int:
    """Return the size of the memory of `HostsMemory`, in whole pages; 0 for a job on one host."""
    if hosts < 2:
        return 0
    words = _aligned(_ROAD.itemsize * hosts) + _aligned(8 * hosts * stripes)
    messages = (hosts - 1) * Message.size_bytes(layout, stripes)
    return _aligned(words + layout.nbytes + messages, _PAGE)
