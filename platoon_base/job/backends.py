"""The back ends of a job: its channels, its center, the groups for its collectives.

Only this file names concrete back ends. Each is imported when it is chosen: a single-worker job
loads nothing that exists on Linux only.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from platoon_base.collectives.groups import CollectiveFactory, Membership
from platoon_base.compression.codecs import NONE
from platoon_base.device_arrays import CudaContext
from platoon_base.errors import BackendUnavailableError, ConfigurationError
from platoon_base.hosts import World
from platoon_base.rules.center import gossips
from platoon_base.system.warn import warn_once

if TYPE_CHECKING:
    from platoon_base.centers.base import CenterFactory
    from platoon_base.channels import ClientChannel
    from platoon_base.channels.zmq import ZmqClient, ZmqServer
    from platoon_base.checkpoints.writer import Readable
    from platoon_base.collectives.base import Collective
    from platoon_base.collectives.nccl_compressed import NcclCompression
    from platoon_base.collectives.nccl_group import NcclGroup
    from platoon_base.devices.runtime import DeviceRuntime
    from platoon_base.job.files import JobFiles
    from platoon_base.layout import Layout
    from platoon_base.parameters import Parameters
    from platoon_base.rules.center import Rule
    from platoon_base.shm.job_state import JobState
    from platoon_base.shm.liveness import Liveness
    from platoon_base.shm.segments import Name

log = logging.getLogger(__name__)

_OF_COMPRESSION = (
    "gradients cannot be compressed between hosts on this GPU; leave more of its memory free "
    "(XLA_PYTHON_CLIENT_MEM_FRACTION for XLA), or launch with --hosts-compression none"
)


def connect_here(job_state: JobState, seed: int) -> ClientChannel:
    """Make the channel of a single-worker job, to a coordinator in this process."""
    from platoon_base.channels.inproc import InprocHub
    from platoon_base.coordination.coordinator import Coordinator

    return InprocHub(Coordinator(1, seed), job_state).connect()


def connect_to(files: JobFiles, controller_alive: Callable[[], bool]) -> ZmqClient:
    from platoon_base.channels.zmq import ZmqClient

    return ZmqClient(files.address, controller_alive)


def listen_at(address: str) -> ZmqServer:
    """Open the controller's end of the channels."""
    from platoon_base.channels.zmq import ZmqServer

    return ZmqServer(address)


def watch_center(files: JobFiles, layout: Layout) -> Readable:
    """Open the center for the controller to read; a center on devices is read by its mirror."""
    name = files.center
    if files.center_memory == "device":
        from platoon_base.centers.device_directory import DIRECTORY, DeviceDirectory, DirectoryMirror

        if DIRECTORY.is_at(name):
            return DirectoryMirror(DeviceDirectory.attach(name, layout, populate=False), layout)
    from platoon_base.centers.gossip import GOSSIP, GossipCenters
    from platoon_base.centers.host import HostCenters

    return (GossipCenters if GOSSIP.is_at(name) else HostCenters)(name).watch(layout)


def center_for(files: JobFiles, workers: int, liveness: Liveness, parameters: Parameters, rule: Rule) -> CenterFactory:
    """Choose the center: on the devices if the launcher and the parameters allow it."""
    from platoon_base.centers.host import HostCenters

    if gossips(rule):
        if files.world.several:
            raise ConfigurationError(
                f"got {rule!r} in a job on several hosts: workers gossip only on one host; use LocalSGD or EASGD"
            )
        from platoon_base.centers.gossip import GossipCenters

        return GossipCenters(files.center, workers, liveness.gone)
    if files.center_memory == "device":
        why = parameters.off_device()
        if not why:
            device = importlib.import_module("platoon_base.centers.device")
            runtime, why = _runtime_of(parameters.context)
            if not device.DeviceCenters.takes(parameters.layout, rule):
                why = f"the rule {type(rule).__name__}, or a dtype of the parameters, has no kernels for devices"
            elif runtime is not None:
                found: CenterFactory = device.DeviceCenters(
                    files.center, workers, runtime, parameters.orders_on_device(), liveness.gone, liveness.incarnation
                )
                return found
        # Parameters that are not on devices have their own warning.
        if any(array is not None for array in parameters.borrow_on_device()):
            warn_once(
                "the center is in host memory, so each synchronization copies all parameters there, "
                f"{parameters.layout.nbytes / 1e6:.3g} MB at about 0.5 ms for each: {why}; "
                "--center host silences this warning"
            )
    _require_compressible(files.world, rule)
    return HostCenters(files.center, workers, liveness.gone, files.world.hosts)


def _require_compressible(world: World, rule: Rule) -> None:
    from platoon_base.compression.codecs import TopK, codec_of
    from platoon_base.rules.outer import waits

    if world.several and isinstance(codec_of(world.compression), TopK) and not waits(rule):
        raise ConfigurationError(
            f"got --hosts-compression {world.compression} and {rule!r}, whose workers do not "
            "wait: the hosts' centers would oscillate, since each sends only a small part; use "
            "int8, int4 or int2, or LocalSGD, SlowMo or DiLoCo"
        )


def _runtime_of(context: Any) -> tuple[Any, str]:
    """Return the runtime of the parameters' device, or None and why there is none."""
    from platoon_base.devices.runtime import runtime_of

    try:
        return runtime_of(context), ""
    except BackendUnavailableError as exc:
        return None, str(exc)


class JobCollectives(CollectiveFactory):
    """Forms the groups of one job, on this host or of all its hosts.

    ``counter`` returns the counter of this worker's collectives on devices, in the job's state.
    """

    def __init__(
        self,
        membership: Membership,
        name: Name,
        counter: Callable[[], Any],
    ) -> None:
        self._membership, self._world = membership, membership.world
        self._name = name
        self._counter = counter
        self._has_noted = self._world.compression == NONE or not self._world.several

    @property
    def compresses(self) -> bool:  # type: ignore[override]
        from platoon_base.collectives.hosts_compressed import gradient_codec

        return gradient_codec(self._world) is not None

    def _note_uncompressed(self, why: str) -> None:
        if not self._has_noted:
            self._has_noted = True
            log.warning(
                "--hosts-compression %s compresses the exchange between the centers of hosts; "
                "averaged gradients are sent between hosts uncompressed: %s",
                self._world.compression,
                why,
            )

    def _note_if_exact(self) -> None:
        if not self.compresses:
            self._note_uncompressed("topk does not apply to them, use int8, int4 or int2")

    def host(self, timeout_s: float) -> Collective:
        """Form a group for ndarrays: through shared memory, and by links between hosts."""
        self._note_if_exact()
        if self._world.several:
            from platoon_base.collectives.hosts import HostsCollective

            return HostsCollective.form(self._membership, self._name, timeout_s)
        from platoon_base.collectives.host import HostCollective

        return HostCollective.form(self._membership, self._name, timeout_s)

    def device(self, context: Any, host: Callable[[], Collective], timeout_s: float) -> Collective:
        """Form a group for GpuArrays: NCCL if every rank has its own CUDA device, else the host."""
        if isinstance(context, CudaContext):
            raise ConfigurationError("got a CudaArray: collectives take NumPy arrays and GpuArrays; use numpy.asarray")
        from platoon_base.collectives.staged import StagedCollective

        if context.kind != b"cuda":
            self.nccl(None, timeout_s)  # Ranks with CUDA devices wait for this call.
            return StagedCollective(host())
        from platoon_base.collectives.gpu_arrays import NcclArrays
        from platoon_base.devices.pygpu_runtime import pygpu_runtime

        try:
            runtime = pygpu_runtime(context)
            ordinal = runtime.driver.ordinal()
        except BackendUnavailableError as exc:  # The other ranks must learn of it.
            log.warning("%s: all-reduces use host memory", exc)
            self.nccl(None, timeout_s)
            return StagedCollective(host())
        group = self.nccl(ordinal, timeout_s, runtime)
        return StagedCollective(host()) if group is None else NcclArrays(group, runtime, context)

    def tensors(self, device: Any, host: Callable[[], Collective], timeout_s: float) -> Collective:
        """Form a group for tensors: NCCL if every rank has its own CUDA device, else the host."""
        tensors = importlib.import_module("platoon_base.collectives.tensors")
        group = None if device.type == "cpu" else self.nccl(device.index if device.type == "cuda" else None, timeout_s)
        found: Collective = tensors.HostTensors(host()) if group is None else tensors.NcclTensors(group, device)
        return found

    def nccl(self, ordinal: int | None, timeout_s: float, runtime: DeviceRuntime | None = None) -> NcclGroup | None:
        """Form a group of CUDA devices, or return None on all ranks if any rank has no NCCL.

        ``ordinal`` is None on a rank without a CUDA device. ``runtime`` is for the kernels that
        compress; by default that of the device's primary context.
        """
        from platoon_base.collectives.nccl_group import NcclGroup
        from platoon_base.devices.cuda import device_identity
        from platoon_base.devices.nccl import new_unique_id

        mine, compression = _Device(why="no CUDA device, so no NCCL"), None
        if ordinal is not None:
            try:
                mine = _Device(device_identity(ordinal), new_unique_id())
                compression, exact = self._nccl_compression(ordinal, runtime)
                mine = mine._replace(exact=exact)
            except BackendUnavailableError as exc:
                mine = _Device(why=str(exc)[:500])
        ranks, unique_id, without = self._meet_by_nccl(mine, timeout_s)
        if not ranks:
            return None
        self._note_if_exact()
        if self.compresses and without:
            rank, reason = next(iter(without.items()))
            self._note_uncompressed(f"rank {rank} cannot compress on its GPU ({reason})")
        return NcclGroup(
            ordinal or 0,
            unique_id,
            ranks,
            ranks.index(self._membership.rank),
            self._membership.liveness,
            self._counter(),
            timeout_s,
            None if without else compression,
        )

    def _nccl_compression(self, ordinal: int, runtime: DeviceRuntime | None) -> tuple[NcclCompression | None, str]:
        """Compile the compression of gradients between hosts, or return None and the reason."""
        from platoon_base.collectives.hosts_compressed import gradient_codec

        codec = gradient_codec(self._world)
        if codec is None:
            return None, "it is not asked to"
        from platoon_base.collectives.nccl_compressed import NcclCompression
        from platoon_base.devices.runtime import CudaRuntime

        try:
            # A separate runtime: another thread may average beside the center's kernels.
            runtime = runtime or CudaRuntime(ordinal, remedy=_OF_COMPRESSION)
            return NcclCompression(codec, runtime, self._world, self._membership.rank), ""
        except BackendUnavailableError as exc:
            return None, str(exc)[:500]

    def _meet_by_nccl(self, mine: _Device, timeout_s: float) -> tuple[tuple[int, ...], bytes, dict[int, str]]:
        """Return the ranks, their group id, and the reason of each rank without compression.

        Returns no ranks if some rank has no NCCL.
        """
        import msgspec

        notes = self._membership.meet("form group of devices", msgspec.msgpack.encode(mine), timeout_s)
        told = {rank: msgspec.msgpack.decode(note, type=_Device) for rank, note in notes.items()}
        reasons = [f"rank {rank}: {device.why}" for rank, device in told.items() if device.why]
        if len({device.identity for device in told.values()}) < len(told):
            reasons.append("some ranks share one device")
        if reasons:
            if mine.identity:
                warn_once(
                    "averages and other all-reduces on this job's devices use host memory "
                    f"({'; '.join(reasons)}), at 0.4 ms or more for each MB"
                )
            return (), b"", {}
        ranks = tuple(told)
        return ranks, told[ranks[0]].unique_id, {rank: each.exact for rank, each in told.items() if each.exact}


class _Device(NamedTuple):
    """The device of a rank, as sent to the other ranks."""

    identity: str = ""
    unique_id: bytes = b""  # The id of a group; that of the first rank counts.
    why: str = ""  # Why it cannot use NCCL.
    exact: str = ""  # Why it cannot compress gradients.
