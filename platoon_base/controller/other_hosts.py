"""Interfaces to the other hosts of a job, as its controller uses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from platoon_base.channels import ServerChannel
from platoon_base.checkpoints.files import About
from platoon_base.controller.processes import WorkerProcesses
from platoon_base.coordination.actions import CenterEvent
from platoon_base.coordination.roster import Participant, Roster
from platoon_base.hosts import World
from platoon_base.shm.job_state import JobState


class HostsCouriers(Protocol):
    """The couriers of a job; see `platoon_base.multihost.courier_table.CourierTable`."""

    def take(self, event: CenterEvent) -> None:
        """Start or end the exchanges between the centers, or those of a round."""
        ...


class OtherHosts(Protocol):
    """The other hosts of a job; see `platoon_base.multihost.hosts.HostTable`."""

    world: World

    @property
    def couriers(self) -> HostsCouriers:
        """The couriers of the current run of the job."""
        ...

    def relayed(self, local: ServerChannel) -> ServerChannel:
        """Return the channel to the workers of all hosts, made from the one of this host."""
        ...

    def begin(
        self,
        job_state: JobState,
        files: Any,
        is_held: Callable[[int], bool],
        roster: Roster,
        children: WorkerProcesses,
        controller: Any,
    ) -> None:
        """Begin a job; ``is_held(rank)`` returns whether a worker of any host holds its lock."""
        ...

    def adopt(self, late: Participant) -> None:
        """Watch a worker that has joined late on another host."""
        ...

    def saved(self, about: About, folder: Path) -> None:
        """Send a checkpoint's description to the other hosts: they may outlive this one."""
        ...

    def end(self) -> None:
        """End the job."""
        ...
