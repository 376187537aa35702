"""Engines on the hosts of a laboratory, as their packages install them: Slurm with munge, and Open MPI."""

import importlib.util
import os
import shutil
import subprocess
import sys

from laboratory import DIES_WITH_US, LOGIN, NETWORK, ROOT, clean_environment, until

SLURM_TOOLS = ("slurmctld", "slurmd", "srun", "sbatch", "sinfo", "scancel", "munged")
_START_S = 30.0


def slurm_problem():
    """Return why there can be no cluster of Slurm; empty if there can."""
    missing = [tool for tool in SLURM_TOOLS if shutil.which(tool) is None]
    return f"needs {', '.join(missing)}: install slurmctld, slurmd, slurm-client and munge" if missing else ""


def mpi_problem():
    """Return why there is no Open MPI; empty if there is."""
    if shutil.which("mpirun") is None:
        return "needs mpirun: install openmpi-bin"
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
    return "" if "Open MPI" in version else f"needs Open MPI's mpirun: this one is {version.splitlines()[:1]}"


def shared_home(laboratory):
    """Make a home that all hosts and the login node share, as engines' users have; returns the variables for it."""
    home = laboratory.folder / "home"
    (home / ".platoon").mkdir(mode=0o700, parents=True)
    return {"HOME": str(home)}


class Slurm:
    """A cluster of the hosts of a laboratory; commands are given on the login node.

    Attributes
    ----------
    environment : dict
        What commands need.
    """

    def __init__(self, laboratory, cpus=4):
        self.laboratory = laboratory
        self.folder = laboratory.folder / "slurm"
        self.environment = {**shared_home(laboratory), "SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons = []
        self._cpus = cpus

    def __enter__(self):
        self.folder.mkdir()
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text(self._configuration())
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        try:
            self._start_daemons()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info):
        for daemon in self._daemons:  # that save their state in time, as nobody needs
            daemon.kill()
        for host in self.laboratory.hosts:  # steps have a process of their own, which outlives its daemon
            if host.alive:
                host.kill()
        for daemon in self._daemons:
            daemon.wait()

    def leftovers(self):
        """Return what jobs have left on the hosts, beside Slurm's own processes."""
        left = [text for texts in self.laboratory.leftovers().values() for text in texts]
        return [text for text in left if "slurm" not in text]

    def _configuration(self):
        count = len(self.laboratory.hosts)
        return f"""
ClusterName=laboratory
SlurmctldHost=login({LOGIN})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge.sock
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
TCPTimeout=2
MessageTimeout=5
KillWait=5
UnkillableStepTimeout=10
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
JobAcctGatherType=jobacct_gather/none
StateSaveLocation={self.folder}/state
SlurmdSpoolDir=/tmp/slurm-%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile=/tmp/slurmd-%n.pid
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd-%n.log
NodeName=h[0-{count - 1}] NodeAddr={NETWORK}.[1-{count}] CPUs={self._cpus} RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

    def _start_daemons(self):
        at = self.folder
        socket = at / "munge.sock"
        self._start([
            "munged", "-F", "--force", f"--key-file={at}/munge.key", f"--socket={socket}", f"--pid-file={at}/munge.pid",
            f"--log-file={at}/munge.log", f"--seed-file={at}/munge.seed",
        ])  # fmt: skip
        until(socket.exists, "munged listens", _START_S)
        self._start(self.laboratory.at_login("slurmctld", "-D", "-c", "-f", at / "slurm.conf"))
        for host in self.laboratory.hosts:
            self._start(host.words("slurmd", "-D", "-N", host.name, "-f", at / "slurm.conf"))
        count = len(self.laboratory.hosts)
        until(lambda: self.ask("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * count, self._news, _START_S)

    def _news(self):
        return self.ask("sinfo", "-N", "-o", "%n %T") + (self.folder / "daemons.out").read_text()[-4000:]

    def _start(self, command):
        with open(self.folder / "daemons.out", "ab") as output:
            self._daemons.append(
                subprocess.Popen(
                    [*DIES_WITH_US, *command],
                    env={**clean_environment(), **self.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )

    def start(self, *command, environment=None):
        """Start a command on the login node; returns a `Running`."""
        return self.laboratory.start_at_login(*command, environment={**self.environment, **(environment or {})})

    def ask(self, *command):
        """Return what a command writes on the login node."""
        return subprocess.run(
            self.laboratory.at_login(*command),
            env={**clean_environment(), **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        ).stdout


class OpenMpi:
    """mpirun on the login node, with an agent that enters the hosts where it would use a remote shell."""

    def __init__(self, laboratory):
        self.laboratory = laboratory
        self.environment = shared_home(laboratory)
        self._agent = laboratory.folder / "agent"
        self._agent.write_text(
            "#!/bin/sh\nhost=$1\nshift\n"
            f'exec nsenter -t "$(cat {laboratory.folder}/inits/$host)" -n -m -u -i -p sh -c "cd /tmp; $*"\n'
        )
        self._agent.chmod(0o755)

    def start(self, *command, hosts=None, slots=1, options=(), environment=None):
        """Start a command on hosts, ``slots`` times on each; returns the `Running` of mpirun."""
        hosts = self.laboratory.hosts if hosts is None else hosts
        variables = {**self.environment, **(environment or {})}
        passed = [word for name in (*variables, "PYTHONPATH", "OMP_NUM_THREADS") for word in ("-x", name)]
        network = f"{NETWORK}.0/24"
        words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "plm_rsh_agent", self._agent]
        words += ["--mca", "plm_rsh_no_tree_spawn", 1, "--mca", "oob_tcp_if_include", network]
        words += ["--mca", "btl_tcp_if_include", network, "-H", ",".join(f"{host.name}:{slots}" for host in hosts)]
        return self.laboratory.start_at_login(*words, *passed, *options, *command, environment=variables)


def ray_python():
    """Return the Python that has Ray: this one, or that of .venv-ray; None if neither has."""
    found = importlib.util.find_spec("ray")
    if found is not None and found.origin:  # not a folder of that name
        return sys.executable
    path = ROOT / ".venv-ray" / "bin" / "python"
    return str(path) if path.exists() else None


# Ray notices a lost node after half a minute, if nothing else is said.
_IMPATIENT = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_DEDUP_LOGS": "0",
    "RAY_memory_monitor_refresh_ms": "0",
}
_RAY_PORT = 6379


class RayCluster:
    """A cluster of Ray of the hosts of a laboratory; the first one has its head.

    Attributes
    ----------
    python : str
        Has Ray.
    environment : dict
        What commands need.
    """

    def __init__(self, laboratory, cpus=2):
        self.laboratory = laboratory
        self.python = ray_python()
        self.commands = []
        self._cpus = cpus
        self.environment = {**_IMPATIENT, "RAY_ADDRESS": f"{laboratory.hosts[0].address}:{_RAY_PORT}"}

    def __enter__(self):
        for host in self.laboratory.hosts:
            self.add(host)
        return self

    def __exit__(self, *exc_info):
        for host in self.laboratory.hosts:
            if host.alive:
                host.kill()

    def add(self, host):
        """Start Ray on a host."""
        where = ["--head", f"--port={_RAY_PORT}", "--include-dashboard=false"] if host.index == 0 else [
            f"--address={self.laboratory.hosts[0].address}:{_RAY_PORT}"]  # fmt: skip
        host.run(
            self.python, "-m", "ray.scripts.scripts", "start", *where, f"--node-ip-address={host.address}",
            f"--num-cpus={self._cpus}", "--num-gpus=0", "--disable-usage-stats", "--object-store-memory=100000000",
            environment=_IMPATIENT,
            timeout_s=90,
        )  # fmt: skip

    def start(self, *options, host=None, environment=None, folder=None):
        """Start `platoon launch --on ray` on a host, the first one if none is given; returns a `Running`."""
        host = host or self.laboratory.hosts[0]
        words = [self.python, "-m", "platoon_base", "launch", "--on", "ray", *options]
        self.commands.append(host.start(*words, environment={**self.environment, **(environment or {})}, folder=folder))
        return self.commands[-1]

    def leftovers(self):
        """Return what jobs have left on the hosts, beside Ray's own processes and memory."""
        left = [text for texts in self.laboratory.leftovers().values() for text in texts]
        return [text for text in left if "platoon" in text]
