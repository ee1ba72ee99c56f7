"""Settings of the agent: one TOML file per node (``sentinel agent --config FILE``), usually the same on every node."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.config.addresses import require_absolute, require_listen, require_wires
from sentinel.config.settings import section, setting
from sentinel.errors import UserError
from sentinel.protocol import PORT


@dataclass(frozen=True, slots=True)
class Dcgm:
    host: str = setting("127.0.0.1:5555", "host engine by TCP; never an embedded one")
    socket: str = setting("", "host engine by unix socket instead of TCP", unit="path")
    account: str = setting(
        "nvidia-dcgm",
        "name or uid of who may run the host engine on this node besides root; any other user may listen at its port while"
        " it is away, and is not believed. Empty: root alone",
    )
    closed_to_users: bool = setting(
        False,
        "no user of the node can reach the host engine's TCP port, as by a firewall rule for root alone. Who reaches it may"
        " write values into it: without this, or a unix socket that is root's alone, what it says convicts a node only"
        " where kernel log, NVML or a diagnostic agrees",
    )
    nvml: str = setting(
        "",
        "folder of pynvml.py (nvidia-ml-py), by which the driver itself is asked; empty: installed beside Sentinel",
        unit="path",
    )
    bindings: str = setting("", "folder of DCGM's Python bindings; empty: where 4.x and 3.3 install them", unit="path")
    dcgmi: str = setting("dcgmi", "command used where there are no bindings, and for diagnostics", unit="path")
    interval_s: float = setting(
        1.0, "raw fields are the fast signal; health polls every 30 s at best", unit="s", least=0.1
    )
    health_s: float = setting(30.0, "period of DCGM's own health check, the slow second", unit="s", least=1.0)
    counters_s: float = setting(
        6 * 3600.0,
        "counters that age (remaps, replays, ECC) are told this often, changed ones after 15 min",
        unit="s",
        least=60.0,
    )
    connect_s: float = setting(15.0, "a refused connection takes 5 s, a black-holed one 11 s", unit="s", least=1.0)
    silent_s: float = setting(
        10.0,
        "a call that answers nothing for this long hangs in the driver: its process is killed",
        unit="s",
        least=0.5,
    )
    profiling: bool = setting(
        True,
        "tensor, memory, NVLink and PCIe activity, by which a waiting GPU is told from a working one at once; DCGM and a"
        " user's profiler (Nsight) may be unable to have them at the same time",
    )
    off: bool = setting(False, "no GPU telemetry on this node; it is then reported as not known, never as healthy")


@dataclass(frozen=True, slots=True)
class Kernel:
    path: str = setting(
        "/dev/kmsg", "kernel log: the device, or a file to which kmsg records are appended", unit="path"
    )
    journalctl: str = setting(
        "journalctl", "read instead of /dev/kmsg where that may not be read; empty: not at all", unit="path"
    )
    pstore: str = setting("/sys/fs/pstore", "where the kernel leaves its last words after a panic", unit="path")
    pstore_archive: str = setting(
        "/var/lib/systemd/pstore", "where systemd-pstore moves them at the next boot; empty: nowhere", unit="path"
    )
    pstore_age_s: float = setting(
        259_200.0,
        "older last words count for nothing: by then, a weekend, people have seen to that failure, and what runs now"
        " did not meet it",
        unit="s",
        least=60.0,
    )
    poll_s: float = setting(
        0.1, "how often a plain file is looked at; the device needs no polling", unit="s", least=0.01
    )
    lines_per_kind: int = setting(
        20,
        "lines of one rule, PCI address and Xid number passed in a window, and the first of each wording; of a line without"
        " an address: lines of one wording, digits aside. The rest is counted",
        least=1,
    )
    window_s: float = setting(60.0, "window of that limit", unit="s", least=1.0)
    replay: bool = setting(
        False, "also read what the kernel said before the agent first started on this boot (else only from now on)"
    )


@dataclass(frozen=True, slots=True)
class Spool:
    bytes: int = setting(
        64 << 20, "disk the unsent evidence may take; beyond it the least valuable goes", least=1 << 16
    )
    segment_bytes: int = setting(256 << 10, "size of one file of it", least=4096)
    batch: int = setting(200, "items sent in one request", least=1, most=5000)
    sync_s: float = setting(
        5.0,
        "evidence that was not sent is forced to the disk this late (hardware's after 50 ms): a power failure loses what"
        " came since; below 0 never",
        unit="s",
    )
    hung_s: float = setting(
        5.0, "a write to the state disk that takes longer is evidence: it hangs", unit="s", least=0.1
    )


@dataclass(frozen=True, slots=True)
class Jobs:
    follow: bool = setting(True, "follow the log of a job on its batch host")
    follow_after_s: float = setting(
        2.0,
        "a follower is a process; a job that ends well before this never gets one, and no job's failure is missed",
        unit="s",
        least=0.0,
    )
    unreported_s: float = setting(
        60.0,
        "how often slurmctld is asked at most about a job that runs here by its word and that no prolog reported, down to "
        "once an hour where the answer leads to nothing (root's job, or one that is not here); 0: never",
        unit="s",
        least=0.0,
    )
    poll_s: float = setting(0.2, "how often a job's log is looked at", unit="s", least=0.05)
    silent_s: float = setting(
        30.0, "a follower that answers nothing for this long stands on a stuck file system", unit="s", least=1.0
    )
    lines_per_s: float = setting(
        50.0, "recognised lines passed per second and job, besides steps", unit="lines/s", least=1
    )
    burst: int = setting(500, "recognised lines passed at once", unit="lines", least=1)
    linger_s: float = setting(10.0, "how long a log is still read after its job ended", unit="s", least=0.0)
    saves_s: float = setting(
        60.0, "how often the checkpoint folders that a running job named are listed; 0: never", unit="s", least=0.0
    )
    lister_stays_s: float = setting(
        150.0,
        "how long the process that listed a user's checkpoints stays for the next time, longer than saves_s: it then answers"
        " in milliseconds when the job is restarted, and costs no start at each look; it has 20 MB; 0: not at all",
        unit="s",
        least=0.0,
    )
    manifests: bool = setting(
        True,
        "read each finished save of a running job once, as its user, and keep checksums in the user's cache: safetensors and"
        " older torch files have none of their own; a job's comment may say otherwise",
    )
    manifests_bytes_per_s: float = setting(
        200e6,
        "at most so fast: a tenth of what one client of a parallel file system reads, and 1 TB in 84 minutes",
        unit="bytes/s",
        least=1e6,
    )
    manifests_s: float = setting(
        6 * 3600.0, "a save that takes longer to read is given up; 4 TB at the default rate", unit="s", least=60.0
    )
    remembered_s: float = setting(
        7 * 86400.0,
        "whose a job's files are is remembered this long after its end; a recovery may wait for a weekend to pass",
        unit="s",
        least=3600.0,
    )
    remembered: int = setting(
        500, "jobs of which that is remembered, the latest; of others Slurm is asked", unit="jobs", least=16
    )
    read_bytes: int = setting(8 << 20, "a follower that starts late reads at most this much of the past", least=4096)
    memory_bytes: int = setting(
        768 << 20,
        "memory of each process that reads a job's log or checkpoints as its user; below MemoryHigh of the unit (1 GiB), as"
        " the agent is in the same control group. A checkpoint whose check takes more is not known; 0: no limit",
        unit="bytes",
        least=0,
    )
    messages_file: str = setting(
        ".config/sentinel/messages.toml",
        "below a user's home: where the user says who else gets messages about own jobs; read as that user, when a channel"
        ' of kind "users" asks for it; empty: never',
        unit="path",
    )


@dataclass(frozen=True, slots=True)
class Collect:
    """Files that explain a job's failure are collected below ``state``, in bundles/JOB.ATTEMPT."""

    on: bool = setting(
        True, "collect when a job ended badly: dumps, error files, end of its log, kernel lines, GPU samples"
    )
    deadline_s: float = setting(
        30.0, "a collector that takes longer is killed; reading a full local disk takes seconds", unit="s", least=2.0
    )
    settle_s: float = setting(
        1.5, "where Slurm does not say how a job ended, the last lines of its log are waited for", unit="s", least=0.0
    )
    files: int = setting(64, "dumps and error files kept of one job; a node has 8 ranks, some write several", least=1)
    dumps: int = setting(2048, "dumps read for what they say; all ranks may share one folder", least=1)
    file_bytes: int = setting(16 << 20, "of one file; a dump of 2,000 calls with stacks takes 3 MB", least=4096)
    total_bytes: int = setting(256 << 20, "of one job's files on this node", least=1 << 16)
    log_bytes: int = setting(256 << 10, "end of the job's log that is kept", least=1024)
    kernel_lines: int = setting(2000, "newest kernel lines since the job began", least=1)
    bundles: int = setting(50, "jobs whose bundle is kept; the oldest goes first", least=1)
    bundles_bytes: int = setting(2 << 30, "disk that all bundles may take", unit="bytes", least=1 << 20)
    places_s: list[float] = setting(
        [3.0, 20.0, 120.0],
        "when a job's processes are asked where they will leave dumps: a launcher starts workers late",
        unit="s",
    )
    listing_s: float = setting(
        5.0,
        "deadline for listing a job's local checkpoints when it ends; its epilog waits for that",
        unit="s",
        least=0.5,
    )
    end_stray: bool = setting(
        False, "end processes that a job left behind (TERM, then KILL); off: they are named, and a person decides"
    )
    term_s: float = setting(
        5.0, "time between TERM and KILL; enough to write a last line", unit="s", least=0.0, most=20.0
    )


@dataclass(frozen=True, slots=True)
class Host:
    period_s: float = setting(60.0, "host, fabric and disk state change slowly", unit="s", least=1.0)
    deadline_s: float = setting(20.0, "one round of host probes", unit="s", least=0.5)
    mounts: list[str] = setting([], "mounts that jobs need; each is probed in a child of its own", unit="path")
    mount_deadline_s: float = setting(
        10.0, "a mount that does not answer statvfs for this long is stuck", unit="s", least=0.1
    )
    full_fraction: float = setting(0.97, "a file system this full is reported", least=0.1, most=1.0)
    sysfs: str = setting("/sys", "root of sysfs", unit="path")
    proc: str = setting("/proc", "root of procfs", unit="path")
    flaps: int = setting(3, "link losses of one port within flap_window_s that are reported", least=1)
    flap_window_s: float = setting(600.0, "window of that count", unit="s", least=1.0)
    smart_s: float = setting(
        3600.0, "period of asking local disks for their SMART health; each time wakes them. 0: never", unit="s", least=0
    )
    smartctl: str = setting("smartctl", "command for that; where there is none, disks are not known", unit="path")
    smart_deadline_s: float = setting(10.0, "one disk's answer; all together have six of these", unit="s", least=1.0)
    clock_skew_s: float = setting(1.0, "offset from the daemon's clock that is reported", unit="s", least=0.01)


@dataclass(frozen=True, slots=True)
class Check:
    """A site's own check: any executable (``[checks.NAME]``)."""

    command: list[str] = setting([], "argument list; no shell")
    period_s: float = setting(300.0, "how often", unit="s", least=1.0)
    deadline_s: float = setting(30.0, "its processes are killed then", unit="s", least=0.1)
    convention: str = setting(
        "nagios", '"nagios" (0 ok, 1 warning, 2 critical, 3 unknown) or "nhc" (0 ok, else failed)'
    )


@dataclass(frozen=True, slots=True)
class Diagnostics:
    level1_s: float = setting(
        0.0, "period of level 1 by the agent; 0: only in the hooks and on order", unit="s", least=0
    )
    deadline_s: list[float] = setting([60.0, 600.0, 2400.0, 7200.0], "deadline of level 1, 2, 3, 4", unit="s")
    stop_s: float = setting(45.0, "DCGM needs up to 40 s to stop a diagnostic", unit="s", least=0)


@dataclass(frozen=True, slots=True)
class Metrics:
    listen: str = setting("", 'address and port of /metrics, e.g. "127.0.0.1:9479"; empty: none')

    def check_loaded(self) -> None:
        if self.listen:
            require_listen("listen", self.listen)


@dataclass(frozen=True, slots=True)
class Slurm:
    """How to ask slurmctld for the user of a job that never ran on this node, and for the folders that a job names."""

    squeue: str = setting("squeue", "command for that; empty: orders for such jobs are refused", unit="path")
    conf: str = setting("", "slurm.conf to use; empty: Slurm's own default", unit="path")
    deadline_s: float = setting(10.0, "one answer; Slurm's own MessageTimeout", unit="s", least=0.5)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    node: str = setting("", "name of this node in Slurm; empty: $SLURMD_NODENAME, else the short host name")
    url: str = setting(f"http://127.0.0.1:{PORT}", "the daemon; several daemons: all, separated by commas")
    munge_socket: str = setting("", "munged's socket; empty: munge's default", unit="path")
    wire: str = setting("clear", "as [daemon] wire: tls needs an address with https", words=("clear", "tls", "munge"))
    ca_file: str = setting("", "authority that signed the daemon's certificate; empty: the system's", unit="path")
    daemon_uid: int = setting(0, 'uid of the daemon, for whom wire = "munge" encrypts', least=0)
    trusted_uids: list[int] = setting([], "uids besides root and our own that the daemon may run as")
    run_dir: str = setting("/run/sentinel", "what hooks read and write: verdict, job files", unit="path")
    state: str = setting("/var/lib/sentinel/agent", "what survives a restart: spool, cursors, results", unit="path")
    resume: str = setting("", "folder on the shared file system that TaskProlog reads resume points from", unit="path")
    gpus: int = setting(-1, "GPUs that Slurm's gres promises on this node; -1: not known", least=-1)
    heartbeat_s: float = setting(
        2.0, "three missed ones make the daemon look; cheaper than polling Slurm", unit="s", least=0.1
    )
    verdict_s: float = setting(
        3.0, "period of the dated verdict; hooks take it for fresh for 15 s", unit="s", least=0.2
    )
    request_s: float = setting(5.0, "deadline of one request to the daemon", unit="s", least=0.1)
    backoff_s: float = setting(5.0, "longest pause between attempts to reach the daemon", unit="s", least=0.1)
    rules: str = setting("", "folder of the site's rules; empty: /etc/sentinel/rules.d if it is there", unit="path")
    dcgm_bindings: str = setting("", "the same as [dcgm] bindings", unit="path")
    dcgm: Dcgm = section(Dcgm)
    kernel: Kernel = section(Kernel)
    spool: Spool = section(Spool)
    jobs: Jobs = section(Jobs)
    collect: Collect = section(Collect)
    host: Host = section(Host)
    checks: dict[str, Check] = setting({}, "site checks by name")
    diagnostics: Diagnostics = section(Diagnostics)
    slurm: Slurm = section(Slurm)
    metrics: Metrics = section(Metrics)

    def check_loaded(self) -> None:
        require_wires("url", self.url, self.wire)
        require_absolute("run_dir", self.run_dir)
        require_absolute("state", self.state)
        if self.resume:
            require_absolute("resume", self.resume)


def require_sound(settings: AgentSettings) -> None:
    """Check settings that depend on each other.

    Raises:
        UserError: names the key and the fix.
    """
    for name, check in settings.checks.items():
        if not check.command:
            raise UserError(f"checks.{name}.command: is missing", fix='write command = ["/path/to/check"]')
        if check.convention not in ("nagios", "nhc"):
            raise UserError(
                f"checks.{name}.convention: {check.convention!r} is not known", fix='write "nagios" or "nhc"'
            )
        if check.deadline_s > check.period_s:
            raise UserError(f"checks.{name}.deadline_s: is longer than its period", fix="make it shorter")
    if len(settings.diagnostics.deadline_s) != 4 or min(settings.diagnostics.deadline_s) <= 0:
        raise UserError("diagnostics.deadline_s: needs four positive numbers", fix="one for each level")
    if settings.collect.deadline_s < settings.collect.term_s + 2:
        raise UserError(
            "collect.deadline_s: leaves no time beside term_s", fix="make it 2 s longer than term_s at least"
        )
    for path in settings.host.mounts:
        if not path.startswith("/"):
            raise UserError(f"host.mounts: {path!r} is not absolute", fix="write the path from /")
