"""A port for Prometheus with the numbers of a running job: ``platoon launch --metrics-port``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from platoon_base import __version__
from platoon_base.cli.observers import Option
from platoon_base.controller.outcome import Result, Snapshot
from platoon_base.errors import ConfigurationError

_HERE = "127.0.0.1"


def _address(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, int] | None:
    """Split ``[ADDRESS:]PORT``; raise if prometheus_client is not installed."""
    if text is None:
        return None
    address, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 2**16):
        raise click.BadParameter(f"got {text!r}: it must be a port, or an address and a port, such as 0.0.0.0:9100")
    from platoon_base.cli.trackers import require_package

    install = "pip install 'platoon-plugins[metrics]', or pip install prometheus-client"
    require_package("prometheus_client", install, f"--metrics-port {text}")
    return address.strip("[]") or _HERE, int(port)


_option = click.option(
    "--metrics-port",
    metavar="[ADDRESS:]PORT",
    callback=_address,
    help="Serve the metrics of the job to Prometheus at http://127.0.0.1:PORT/metrics, or at "
    "another address of this host. Port 0 chooses a free port. It needs prometheus_client.",
)


class MetricsPort:
    """Serves the latest snapshot by HTTP, in threads; Prometheus computes the rates."""

    name, limit_s = "Prometheus", None

    def __init__(self, address: tuple[str, int], script: str) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._script = script
        self._snapshot: Snapshot | None = None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        host, port = address
        self._server: Any
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as exc:
            raise ConfigurationError(
                f"got --metrics-port {host}:{port}, where nothing can listen: {exc}; name "
                "another port, another address of this host, or 0 for a free port"
            ) from exc
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}/metrics"
        self.opening = f"Prometheus can read {self.url}"

    def close(self, result: Result | None = None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Any]:
        """Yield the metrics; prometheus_client calls this for each request."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        about = {"script": self._script, "version": __version__}
        yield InfoMetricFamily("platoon_job", "The job.", value=about)
        snapshot = self._snapshot
        if snapshot is None:
            return
        yield GaugeMetricFamily("platoon_job_seconds", "Seconds since the start of the job.", value=snapshot.seconds)
        for name, text, count in (
            ("failures", "Workers that failed, including restarted ones.", len(snapshot.failed)),
            ("missed_checkpoints", "Checkpoints that could not be written.", snapshot.missed_checkpoints),
        ):
            yield CounterMetricFamily(f"platoon_{name}", text, value=count)
        phases = GaugeMetricFamily("platoon_workers", "Number of workers in a phase.", labels=["phase"])
        counted = Counter(each.phase.name.lower() for each in snapshot.participants)
        for phase, number in sorted(counted.items()):
            phases.add_metric([phase], number)
        yield phases
        reported = GaugeMetricFamily("platoon_reported", "A value that the workers have reported.", labels=["name"])
        for name, value in snapshot.reported.items():
            if isinstance(value, (int, float)):
                reported.add_metric([name], value)
        yield reported
        yield from self._of_workers(snapshot)

    def _of_workers(self, snapshot: Snapshot) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        devices = {each.rank: each.device for each in snapshot.participants}
        for kind, name, text in (
            (CounterMetricFamily, "steps", "Mini-batches of a worker since its start."),
            (CounterMetricFamily, "syncs", "Synchronizations of a worker with the center."),
            (CounterMetricFamily, "sync_seconds", "Seconds of a worker in synchronization."),
            (GaugeMetricFamily, "epoch", "Current epoch of a worker."),
            (GaugeMetricFamily, "loss", "Loss that a worker reported last."),
            (GaugeMetricFamily, "cpu_percent", "Use of the processor by a worker; 100 is one core."),
            (GaugeMetricFamily, "memory_bytes", "Memory of a worker in RAM."),
        ):
            family = kind(f"platoon_{name}", text, labels=["rank", "device"])
            for rank, progress in sorted(snapshot.progress.items()):
                value = float(getattr(progress, name))
                # For Prometheus a counter that falls, as after a resume, restarts at 0.
                if name == "steps":
                    value -= progress.steps_before_start
                if not math.isnan(value):  # No loss is known yet.
                    family.add_metric([str(rank), devices.get(rank, "")], value)
            yield family


OPTION = Option(_option, "metrics_port", lambda address, job: MetricsPort(address, job.script))
