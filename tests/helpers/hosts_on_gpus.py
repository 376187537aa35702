"""Jobs of several hosts, all this machine, whose workers have CUDA devices."""

from same_training import require_alike, require_fewer_bytes
from scripts_here import script_path

from tests.helpers.launching_hosts import Hosts, clean_environment

__all__ = ["HostsOnGpus"]

# NCCL has to send over TCP, as between machines, so that the bytes can be counted.
SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_NVLS_ENABLE": "0"}
LIMIT_S = 180


class HostsOnGpus:
    """Runs scripts on hosts, in folders below one; close it."""

    def __init__(self, folder):
        self._folder = folder
        self._opened = []

    def run(self, script, codec, devices, args=(), environment=None):
        """Run a script with gradients compressed by a codec; returns what each worker said last.

        ``devices`` has the names of each host's, such as ``[["cuda0"], ["cuda1"]]``.
        """
        folder = self._folder / codec
        folder.mkdir()
        variables = {"COLUMNS": "200", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **SOCKETS, **(environment or {})}
        hosts = Hosts(folder, {**clean_environment(), **variables})
        self._opened.append(hosts)
        for host, names in enumerate(devices):
            options = ["-D", *names, "--no-encryption", "--hosts-compression", codec]
            hosts.start(script_path(script), *options, host=host, hosts=len(devices), args=args)
        assert hosts.wait(LIMIT_S) == [0] * len(devices), "".join(map(hosts.output, range(len(devices))))
        ranks = [host for host, names in enumerate(devices) for _ in names]
        return [hosts.said(rank, host)[-1] for rank, host in enumerate(ranks)]

    def require_same_training(self, script, devices, args=()):
        """Train exactly and by ``int8``, and compare loss, bits and bytes."""
        exact, compressed = (self.run(script, codec, devices, args) for codec in ("none", "int8"))
        require_alike(exact, compressed)
        require_fewer_bytes(exact, compressed)

    def close(self):
        for hosts in self._opened:
            hosts.close()
