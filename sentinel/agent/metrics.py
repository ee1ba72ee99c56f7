"""Serves the agent's ``/metrics``: the newest GPU samples, which the daemon does not get, and the agent's state."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from sentinel.errors import Unavailable, UserError
from sentinel.evidence import gpu_samples as fields

if TYPE_CHECKING:
    from sentinel.agent.agent import Agent

MOST_CONNECTIONS = 8  # at once; a site has one or two scrapers
CONNECTION_S = 10.0  # a scrape takes milliseconds, and Prometheus gives up after 10 s

# field -> (metric, help)
GPU_METRICS = {
    fields.TEMPERATURE: ("sentinel_gpu_temperature_celsius", "GPU temperature"),
    fields.TEMPERATURE_MEMORY: ("sentinel_gpu_memory_temperature_celsius", "Memory temperature"),
    fields.POWER_W: ("sentinel_gpu_power_watts", "Power draw"),
    fields.GPU_UTILISATION: ("sentinel_gpu_utilisation_percent", "Share of time in which a kernel ran"),
    fields.MEMORY_USED_MIB: ("sentinel_gpu_memory_used_mebibytes", "Memory in use"),
    fields.CLOCK_REASONS: ("sentinel_gpu_clock_event_reasons", "Reasons for clocks below maximum, as a bit mask"),
    fields.SBE: ("sentinel_gpu_ecc_corrected_errors", "Corrected memory errors since the driver was loaded"),
    fields.DBE: ("sentinel_gpu_ecc_uncorrected_errors", "Uncorrected memory errors since the driver was loaded"),
    fields.REMAP_UNCORRECTABLE: (
        "sentinel_gpu_remapped_rows_uncorrectable",
        "Rows remapped after uncorrectable errors",
    ),
    fields.REMAP_CORRECTABLE: ("sentinel_gpu_remapped_rows_correctable", "Rows remapped after correctable errors"),
    fields.PCIE_REPLAY: ("sentinel_gpu_pcie_replays", "PCIe replays"),
    fields.PCIE_WIDTH: ("sentinel_gpu_pcie_width", "PCIe link width"),
    fields.NVLINK_CRC_FLIT: ("sentinel_gpu_nvlink_crc_flit_errors", "NVLink CRC flit errors"),
    fields.NVLINK_CRC_DATA: ("sentinel_gpu_nvlink_crc_data_errors", "NVLink CRC data errors"),
    fields.NVLINK_REPLAY: ("sentinel_gpu_nvlink_replays", "NVLink replays"),
    fields.RECOVERY_ACTION: ("sentinel_gpu_recovery_action", "What the driver asks for: 0 none to 4 drain and reset"),
}


class AgentCollector:
    """Reads the agent's state at each scrape. A value that is not known has no series, rather than 0."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        agent = self._agent
        sample = agent.gpus.last
        fresh = agent.gpus.trouble() is None
        for number, (name, text) in GPU_METRICS.items():
            family = GaugeMetricFamily(name, text, labels=["gpu", "uuid"])
            for gpu in sample.gpus if sample is not None and fresh else ():
                value = gpu.fields.get(number)
                if isinstance(value, (int, float)):
                    family.add_metric([str(gpu.index), gpu.uuid or ""], value)
            yield family
        gauges = {
            "sentinel_agent_telemetry_fresh": ("1 when GPU telemetry is fresh", float(fresh)),
            "sentinel_agent_connected": ("1 when the daemon answers", float(agent.heartbeats.connected is True)),
            "sentinel_agent_spool_pending": ("Evidence not acknowledged yet", float(agent.spool.pending)),
            "sentinel_agent_spool_stuck_seconds": ("How long a write to the state disk hangs", agent.spool.stuck_s),
            "sentinel_agent_jobs": ("Jobs on this node", float(len(agent.jobs.jobs))),
            "sentinel_agent_verdict_bad": ("1 when hooks refuse this node", float(agent.verdict.now().word == "BAD")),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value)
        counters = {
            "sentinel_agent_evidence_sent": ("Evidence the daemon acknowledged", agent.sender.sent),
            "sentinel_agent_given_up": (
                "Evidence and results of orders that the daemon does not take",
                agent.sender.given_up + agent.orders.given_up,
            ),
            "sentinel_agent_spool_dropped": ("Evidence given up because the spool was full", agent.spool.dropped),
            "sentinel_agent_spool_corrupt": ("Lines of the spool that could not be read back", agent.spool.corrupt),
            "sentinel_agent_spool_write_errors": ("Writes that the disk refused", agent.spool.write_errors),
            "sentinel_agent_kernel_records": ("Kernel records read", agent.kernel.records),
            "sentinel_agent_kernel_suppressed": ("Kernel evidence above its limit", agent.kernel.flood.suppressed),
            "sentinel_agent_orders": ("Orders carried out", agent.orders.carried_out),
            "sentinel_agent_orders_refused": (
                "What the daemon asked for and this agent refused",
                agent.orders.refused + agent.saves.refused,
            ),
        }
        for name, (text, number) in counters.items():
            yield CounterMetricFamily(name, text, value=float(number))


class BoundedServer(socketserver.ThreadingTCPServer):
    """A server for scrapers that holds a bounded number of connections, each for a bounded time.

    Anybody on the node may connect to it, and each connection is a thread of root's agent.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = (
        64  # what is refused waits there for a moment; with the usual 5 a scraper would connect again after 1 s
    )

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        family, *_, found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        self._since_s: dict[socket.socket, float] = {}
        super().__init__((str(found[0]), int(found[1])), handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether another connection may be held; one that may not is closed."""
        if len(self._since_s) >= MOST_CONNECTIONS:
            return False
        self._since_s[request] = time.monotonic()
        return True

    def shutdown_request(self, request: Any) -> None:
        self._since_s.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Ends connections that took too long; the loop of the server calls it twice a second."""
        now_s = time.monotonic()
        for connection, since_s in list(self._since_s.items()):
            if now_s - since_s > CONNECTION_S:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that went away is no news."""


def serve(agent: Agent, listen: str) -> BoundedServer:
    """Start the exporter; returns the server.

    Raises:
        UserError: ``listen`` is not an address. Unavailable: the port is taken.
    """
    from prometheus_client import CollectorRegistry, MetricsHandler

    host, _, port = listen.rpartition(":")
    if not port.isdigit():
        raise UserError(f"metrics.listen: {listen!r} is no address", fix='write it like "127.0.0.1:9479"')
    registry = CollectorRegistry()
    registry.register(AgentCollector(agent))
    try:
        server = BoundedServer((host.strip("[]") or "127.0.0.1", int(port)), MetricsHandler.factory(registry))
    except OSError as error:
        raise Unavailable(f"metrics.listen: {listen}: {error.strerror}", fix="choose a free port") from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
