"""Host and fabric: readings of a made-up /sys and /proc, edges, the site's checks."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.host import readings
from sentinel.agent.collectors.periodic_checks import PeriodicChecks
from sentinel.agent.process.children import Ending, Program
from sentinel.agent.settings import AgentSettings, Check, Host
from sentinel.evidence.host import HostReader, HostReading, Port, check_meaning, reading_from
from sentinel.model.records import Evidence, Kind

T0 = datetime(2032, 1, 2, 3, 4, 5, tzinfo=UTC)


def reading(minute: float = 0, **rest: Any) -> HostReading:
    return HostReading(at=T0 + timedelta(minutes=minute), **rest)


def port(state: str = "ACTIVE", downed: int | None = 0) -> tuple[Port, ...]:
    return (Port("mlx5_0:1", state, {} if downed is None else {"link_downed": downed}),)


def kinds(found: list[Evidence]) -> list[str]:
    return [str(item.kind) for item in found]


def test_a_port_that_lost_its_link() -> None:
    reader = HostReader("n1")
    assert reader.read(reading(0, ports=port())) == []
    (found,) = reader.read(reading(1, ports=port("DOWN")))
    assert (found.kind, found.where.nic) == ("link_down", "mlx5_0:1")
    assert reader.read(reading(2, ports=port("DOWN"))) == []
    assert reader.read(reading(3, ports=port())) == []
    assert kinds(reader.read(reading(4, ports=port("INIT")))) == ["link_down"]


def test_a_port_that_was_never_up_is_not_wired() -> None:
    reader = HostReader("n1")
    assert [reader.read(reading(n, ports=port("DOWN"))) for n in range(3)] == [[]] * 3


def test_a_state_that_cannot_be_read_changes_nothing() -> None:
    reader = HostReader("n1")
    reader.read(reading(0, ports=port()))
    assert reader.read(reading(1, ports=(Port("mlx5_0:1", None, {}),))) == []


def test_flaps_count_within_their_window() -> None:
    reader = HostReader("n1", flaps=3, flap_window_s=600)
    found = [
        kinds(reader.read(reading(minute, ports=port(downed=count)))) for minute, count in enumerate([7, 8, 9, 10, 10])
    ]
    assert found == [[], [], [], ["link_flap"], []]
    slow = HostReader("n1", flaps=3, flap_window_s=600)
    assert all(slow.read(reading(20 * n, ports=port(downed=n))) == [] for n in range(6))
    back = HostReader("n1", flaps=3, flap_window_s=600)
    at = ((0, 0), (1, 1), (2, 2), (-60, 2), (-30, 3))  # the clock is set back by an hour; half an hour later
    assert all(back.read(reading(minute, ports=port(downed=count))) == [] for minute, count in at)


def test_errors_of_host_memory_are_growth() -> None:
    reader = HostReader("n1")
    assert reader.read(reading(0, uncorrected={"mc0": 4})) == []
    assert kinds(reader.read(reading(1, uncorrected={"mc0": 5}))) == ["host_memory_ecc"]
    assert reader.read(reading(2, uncorrected={"mc0": 0})) == [], "the counter was reset"


def test_a_full_disk_is_said_once() -> None:
    reader = HostReader("n1", full_fraction=0.9)
    found = [
        kinds(reader.read(reading(n, disks={"/tmp": used}))) for n, used in enumerate([0.5, 0.95, 0.96, 0.2, 0.91])
    ]
    assert found == [[], ["disk_full"], [], [], ["disk_full"]]


def test_a_driver_that_does_not_fit_its_library() -> None:
    reader = HostReader("n1")
    assert reader.read(reading(0, driver=None, library="570.1")) == [], "no driver is not a wrong one"
    assert reader.read(reading(1, driver="570.1", library="570.1")) == []
    assert kinds(reader.read(reading(2, driver="570.1", library="575.2"))) == ["driver_mismatch"]


def test_switches_need_their_fabric_manager() -> None:
    reader = HostReader("n1")
    assert reader.read(reading(0, switches=0, fabric_manager=False)) == [], "no switches, no manager"
    assert reader.read(reading(1, switches=4, fabric_manager=None)) == [], "not known"
    (found,) = reader.read(reading(2, switches=4, fabric_manager=False))
    assert found.kind == "fabric_manager"
    assert reader.read(reading(3, switches=4, fabric_manager=False)) == []
    reader.read(reading(4, switches=4, fabric_manager=True))
    assert len(reader.read(reading(5, switches=4, fabric_manager=False))) == 1


@pytest.mark.parametrize(
    ("program", "uid", "found"),
    [("nv-fabricmanager", 0, True), ("nv-fabricmanager (deleted)", 0, True), ("su", 1000, False), ("sudo", 0, False)],
)
def test_the_fabric_manager_is_found_by_its_program_and_root(
    tmp_path: Path, program: str, uid: int, found: bool
) -> None:
    """Found as an attack: a link to su under that name, which waits for a password, hid that the manager had died."""
    (tmp_path / "412").mkdir()
    (tmp_path / "412" / "comm").write_text("nv-fabricmanage\n")
    (tmp_path / "412" / "status").write_text(f"Name:\tx\nUid:\t{uid}\t0\t0\t0\n")
    (tmp_path / program).touch(mode=0o755)
    (tmp_path / "412" / "exe").symlink_to(tmp_path / program)
    (tmp_path / "driver" / "nvidia-nvswitch" / "devices" / "0000:05:00.0").mkdir(parents=True)
    assert readings.switches(tmp_path) == 1
    assert readings.runs(tmp_path, "nv-fabricmanager") is (found and (tmp_path / "412").stat().st_uid == 0)
    assert readings.runs(tmp_path, "nv-hostengine") is False
    assert readings.runs(tmp_path / "nothing", "nv-fabricmanager") is None


def test_where_a_program_may_not_be_read_whether_the_fabric_manager_runs_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the right to trace processes it was said not to run, on each node with NVSwitches."""
    (tmp_path / "412").mkdir()
    (tmp_path / "412" / "comm").write_text("nv-fabricmanage\n")
    (tmp_path / "412" / "status").write_text("Name:\tx\nUid:\t0\t0\t0\t0\n")
    if os.geteuid() != 0:
        pytest.skip("only root makes files of root")

    def refused(_: Path) -> Path:
        raise PermissionError(13, "not permitted")

    monkeypatch.setattr(Path, "readlink", refused)
    assert readings.runs(tmp_path, "nv-fabricmanager") is None
    assert readings.runs(tmp_path, "nv-hostengine") is False


def test_strays_are_named() -> None:
    reader = HostReader("n1")
    (found,) = reader.read(reading(0, strays=((412, "python"),)))
    assert (found.kind, found.data["pid"]) == ("stray_gpu_process", 412)
    assert reader.read(reading(1, strays=((412, "python"),))) == []
    reader.read(reading(2))
    assert len(reader.read(reading(3, strays=((412, "python"),)))) == 1


def test_sysfs(tmp_path: Path) -> None:
    folder = tmp_path / "class" / "infiniband" / "mlx5_3" / "ports" / "1"
    (folder / "counters").mkdir(parents=True)
    (folder / "state").write_text("4: ACTIVE\n")
    (folder / "counters" / "link_downed").write_text("12\n")
    (folder / "counters" / "link_error_recovery").write_text("N/A\n")
    controller = tmp_path / "devices" / "system" / "edac" / "mc" / "mc1"
    controller.mkdir(parents=True)
    (controller / "ue_count").write_text("3\n")
    counters = {"link_downed": 12}
    assert readings.ports(tmp_path) == [{"name": "mlx5_3:1", "state": "ACTIVE", "counters": counters, "virtual": False}]
    assert readings.uncorrected(tmp_path) == {"mc1": 3}


def test_procfs(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    250 kB\n")
    assert readings.memory_available(tmp_path) == 0.25
    assert readings.driver_version(tmp_path) is None
    (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    (tmp_path / "driver" / "nvidia" / "version").write_text("NVRM version: NVIDIA UNIX Module  570.172.08  Release\n")
    assert readings.driver_version(tmp_path) == "570.172.08"
    library = tmp_path / "lib"
    library.mkdir()
    (library / "libnvidia-ml.so.575.57.08").touch()
    (library / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.575.57.08")
    assert readings.library_version([str(library)]) == "575.57.08"
    assert readings.library_version([str(tmp_path)]) is None


def test_disks(tmp_path: Path) -> None:
    used = readings.used_fraction(str(tmp_path))
    assert used is not None
    assert 0 <= used <= 1
    assert readings.used_fraction(str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("convention", "status", "meaning"),
    [("nagios", 0, "ok"), ("nagios", 1, "warning"), ("nagios", 2, "critical"), ("nagios", 3, "unknown"),
     ("nagios", 4, "unknown"), ("nagios", None, "unknown"), ("nhc", 0, "ok"), ("nhc", 1, "critical"),
     ("nhc", 42, "critical"), ("nhc", 126, "unknown"), ("nhc", 127, "unknown"), ("nhc", -9, "unknown"),
     ("nhc", 137, "unknown")],
)  # fmt: skip
def test_what_an_exit_status_means(convention: str, status: int | None, meaning: str) -> None:
    assert check_meaning(convention, status) == meaning


class Bench:
    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}
        self.left_behind = 0

    def start(self, program: Program) -> bool:
        self.programs[program.name] = program
        return not self.left_behind

    def stuck(self, _name: str) -> int:
        return self.left_behind


@pytest.fixture
def site(tmp_path: Path) -> tuple[PeriodicChecks, Bench, list[Evidence]]:
    bench, kept = Bench(), []  # type: ignore[var-annotated]
    settings = AgentSettings(
        node="n1",
        state=str(tmp_path),
        host=Host(mounts=["/data"]),
        checks={"fans": Check(["/opt/fans"], deadline_s=7)},
    )

    def program(name: str, module: str, arguments: Any, **rest: Any) -> Program:
        return Program(name, [module], arguments, **rest)

    return PeriodicChecks("n1", settings, bench, program, kept.append, lambda: [5]), bench, kept  # type: ignore[arg-type]


def test_a_mount_that_is_stuck_is_said_until_it_answers(site: tuple[PeriodicChecks, Bench, list[Evidence]]) -> None:
    rounds, bench, kept = site
    for _ in range(3):
        rounds.mounts()
        bench.programs["mount:/data"].on_end(Ending("mount:/data", None, True, "", "D in nfs4_wait"))
    assert kinds(kept) == [Kind.PROBE_HUNG]
    assert "nfs4_wait" in kept[0].text
    assert kept[0].where.path == "/data"
    bench.programs["mount:/data"].on_message({"type": "mount", "mounted": True, "used": 0.5})
    bench.programs["mount:/data"].on_end(Ending("mount:/data", None, True, "", ""))
    assert kinds(kept) == [Kind.PROBE_HUNG] * 2


def test_probes_that_pile_up_are_left_alone_and_said(site: tuple[PeriodicChecks, Bench, list[Evidence]]) -> None:
    rounds, bench, kept = site
    bench.left_behind = 3
    rounds.mounts()
    rounds.mounts()
    assert [item.data["unkillable"] for item in kept] == [True]


@pytest.mark.parametrize(
    ("message", "kind"),
    [({"mounted": False}, "mount_missing"), ({"error": "Stale file handle"}, "mount_error"),
     ({"mounted": True, "used": 0.99}, "disk_full"), ({"mounted": True, "used": None}, None)],
)  # fmt: skip
def test_what_a_mount_says(
    site: tuple[PeriodicChecks, Bench, list[Evidence]], message: dict[str, Any], kind: str | None
) -> None:
    rounds, bench, kept = site
    rounds.mounts()
    bench.programs["mount:/data"].on_message(message)
    bench.programs["mount:/data"].on_message(message)
    assert kinds(kept) == ([kind] if kind else [])


def test_a_check_of_the_site(site: tuple[PeriodicChecks, Bench, list[Evidence]]) -> None:
    rounds, bench, kept = site
    rounds.check("fans")
    program = bench.programs["check:fans"]
    assert (program.total_s, program.arguments["command"]) == (7, ["/opt/fans"])
    for status in (0, 2, 2, 3, 0, 2):
        program.on_message({"type": "check", "status": status, "output": "fan 3 stands still"})
    assert kinds(kept) == ["site_check", Kind.UNREADABLE, "site_check"]
    assert kept[0].text == "fans: fan 3 stands still"


def test_a_check_that_never_ends(site: tuple[PeriodicChecks, Bench, list[Evidence]]) -> None:
    rounds, bench, kept = site
    rounds.check("fans")
    bench.programs["check:fans"].on_end(Ending("check:fans", None, True, "", "S"))
    assert kinds(kept) == [Kind.PROBE_HUNG]


def test_a_clock_that_jumped(site: tuple[PeriodicChecks, Bench, list[Evidence]]) -> None:
    rounds, _, kept = site
    for offset in (None, 0.2, -40.0, None, -41.0, 0.0, 5.0):  # an offset that is not known changes nothing
        rounds.clock(offset)
    assert kinds(kept) == ["clock_skew", "clock_skew"]


def test_a_reading_from_json() -> None:
    made = reading_from({"ports": [{"name": "a:1", "state": "DOWN"}], "strays": [[1, "x"]]}, T0)
    assert made.ports[0].state == "DOWN"
    assert made.strays == ((1, "x"),)


def test_disks_by_their_own_word(site: tuple[PeriodicChecks, Bench, list[Evidence]]) -> None:
    rounds, bench, kept = site
    for message in (
        {"disk": "nvme0", "passed": True, "critical_warning": 0, "media_errors": 0},
        {"disk": "nvme0", "passed": False, "critical_warning": 4, "media_errors": 2},
        {"disk": "nvme0", "error": "no answer within 10 s"},
        {"absent": "smartctl: No such file or directory"},
    ):
        rounds.smart()
        bench.programs["smart"].on_message({"type": "smart", **message})
    assert kinds(kept) == [Kind.COUNTERS, "disk_failing", "disk_errors", Kind.UNREADABLE]
    assert kept[0].data == {"nvme0/media_errors": 0.0}


def test_port_counters_age_too(site: tuple[PeriodicChecks, Bench, list[Evidence]]) -> None:
    rounds, bench, kept = site
    rounds.host()
    bench.programs["host"].on_message(
        {"ports": [{"name": "mlx5_0:1", "state": "ACTIVE", "counters": {"link_downed": 4}}]}
    )
    assert [(item.kind, dict(item.data)) for item in kept] == [(Kind.COUNTERS, {"mlx5_0:1/link_downed": 4.0})]


def test_what_the_network_adapters_moved(tmp_path: Path) -> None:
    port, ethernet = tmp_path / "class/infiniband/mlx5_0/ports/1/counters", tmp_path / "class/net/eth0"
    efa, bridge = tmp_path / "class/infiniband/rdmap0/ports/1/hw_counters", tmp_path / "class/net/docker0/statistics"
    for folder in (port, efa, bridge, ethernet / "statistics", ethernet / "device"):
        folder.mkdir(parents=True)
    assert readings.network_bytes(tmp_path / "nothing") is None
    for name in ("rx_bytes", "tx_bytes"):
        (ethernet / "statistics" / name).write_text("7\n")
        (bridge / name).write_text("1000000\n")  # no hardware
    (port / "port_xmit_data").write_text("1000\n")
    (port / "port_rcv_data").write_text("2000\n")
    (efa / "tx_bytes").write_text("500\n")
    assert readings.network_bytes(tmp_path) == 4 * 3000 + 500 + 14
    (port / "port_xmit_data").write_text(f"{2**32 - 1}\n")  # an old adapter whose counter stands at its end
    assert readings.network_bytes(tmp_path) is None
    (port / "port_xmit_data").unlink()
    (ethernet / "statistics" / "rx_bytes").write_text("\n")
    assert readings.network_bytes(tmp_path) is None
