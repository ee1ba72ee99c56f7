"""Settings: one TOML file for the daemon, one for each agent, parsed strictly.

Every setting is a field here, with its unit, default and reason; ``sentinel config show`` prints this table. An unknown
key, a wrong type or an absurd value is an error that names file, line, key and the fix (``sentinel.config.settings_toml``).
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.config.addresses import require_absolute, require_database, require_http, require_listen, require_wires
from sentinel.config.alerts import Alerts, WeeklyReport
from sentinel.config.judgement_settings import Judgement
from sentinel.config.modes import Mode, Modes
from sentinel.config.page_settings import Page
from sentinel.config.return_settings import Diagnostics, ReturnSettings
from sentinel.config.settings_toml import InvalidSetting, described, load, section, setting
from sentinel.protocol import PORT

# With the records below: one place to import settings from.
__all__ = ["Alerts", "Diagnostics", "Judgement", "Mode", "Modes", "Page", "described", "load", "section", "setting"]


@dataclass(frozen=True, slots=True)
class Slurm:
    bin: str = setting("", "folder of Slurm's commands; empty: from PATH")
    conf: str = setting("", "slurm.conf to use; empty: Slurm's own default")
    deadline_s: float = setting(
        10.0, "a healthy slurmctld answers in under a second; longer is *not known*", unit="s", least=0.1
    )
    reconcile_s: float = setting(
        20.0, "events bring news; this catches what they missed, with three requests a period", unit="s", least=1.0
    )
    blind_s: float = setting(
        60.0,
        "people are told when Slurm cannot be read for this long; a slurmctld restarts in less",
        unit="s",
        least=1.0,
    )


@dataclass(frozen=True, slots=True)
class Daemon:
    listen: str = setting(f"0.0.0.0:{PORT}", "address and port for agents, hooks and the command line")
    url: str = setting(
        f"http://127.0.0.1:{PORT}",
        "how agents, hooks and the command line reach the daemon; several daemons: all, separated by commas",
    )
    state: str = setting("/var/lib/sentinel", "folder of the store")
    database: str = setting("", "SQLAlchemy URL; empty: SQLite in the state folder")
    database_s: float = setting(10.0, "deadline of a transaction; tenfold for loading and pruning", unit="s", least=1)
    database_readers: int = setting(4, "readings at once, a connection each; writing has up to 7 more", least=1)
    lease_s: float = setting(
        5.0,
        "with several daemons on one database: the active one renews its lease five times in this, and another takes over "
        "when it has seen no renewal for so long",
        unit="s",
        least=1,
        most=60,
    )
    resume: str = setting("", "folder on the shared file system that TaskProlog reads resume points from", unit="path")
    munge_socket: str = setting("", "munged's socket; empty: munge's default")
    wire: str = setting(
        "clear",
        "how requests and answers travel. tls: encrypted with certificate_file, for addresses with https. munge: encrypted "
        "by MUNGE for the receiver's uid; it costs munged twice as many credentials. clear: whoever reads the network "
        "reads log lines, names and paths",
        words=("clear", "tls", "munge"),
    )
    certificate_file: str = setting(
        "", "the daemon's certificate with what leads to its authority (PEM), read again when it changes", unit="path"
    )
    key_file: str = setting("", "its key, where that is a file of its own", unit="path")
    ca_file: str = setting(
        "", "authority that signed it, for those who ask the daemon; empty: the system's", unit="path"
    )
    uid: int = setting(
        0, 'uid of the daemon: commands believe it, and wire = "munge" encrypts requests for it', least=0
    )
    events: str = setting(
        "",
        "folder in which the controller's hook leaves its news (SENTINEL_EVENTS), of SlurmUser, closed to others; empty: "
        "only over HTTP, with a process for each job",
        unit="path",
    )
    trusted_uids: list[int] = setting([], "uids besides root and our own that may speak for nodes")
    operators: list[int | str] = setting(
        [], 'who besides root and our own account may change state: uids, accounts ("ada"), groups ("%hpc-ops")'
    )
    session_s: float = setting(
        3600.0,
        "for so long an agent that proved by MUNGE who it is signs its requests with a key of its own, even if MUNGE's "
        "is changed meanwhile; 0: MUNGE signs each, which costs three times as much",
        unit="s",
        least=0,
        most=86400,
    )
    node_addresses: str = setting(
        "refuse",
        "refuse or log a node's request that comes neither from its NodeAddr in Slurm nor from where its name resolves to; "
        "log: agents reach the daemon over another network",
        words=("refuse", "log"),
    )
    audit_syslog: str = setting(
        "",
        "where each entry of the audit is copied to: /dev/log, udp://HOST:PORT or tcp://HOST:PORT; empty: nowhere. Who can "
        "write the database cannot alter the copy",
    )
    request_bytes: int = setting(4 << 20, "largest request that is read", unit="bytes", least=4096)
    connections: int = setting(
        40960,
        "open at once, and never more than the process may have files less 512; an agent has two, and four while it is busy",
        least=16,
    )
    waiting_connections: int = setting(
        1024, "of these, that have not proved to come from a node or an operator and ask nothing", least=8
    )
    waiting_per_address: int = setting(
        256, "of these, from one address: the longest waiting one is closed for a new one", least=4
    )
    header_s: float = setting(5.0, "from opening a connection to the end of its first header", unit="s", least=0.1)
    body_s: float = setting(
        15.0, "to read a request's body, and to hand over its answer: 4 MB at 300 kB/s", unit="s", least=0.1
    )
    idle_s: float = setting(
        60.0, "a connection without a request is closed; agents send one every 2 s", unit="s", least=1
    )
    heartbeat_lost_s: float = setting(
        6.0,
        "three missed heartbeats of 2 s; then slurmd's port is asked, since silence is no proof",
        unit="s",
        least=0.5,
    )
    probe_s: float = setting(
        1.0, "deadline of one connection attempt to slurmd's port, and of the look-up before it", unit="s", least=0.05
    )
    probe_attempts: int = setting(
        3, "refused or silent this often in a row before a node counts as unreachable", least=1
    )
    blind_s: float = setting(
        60.0,
        "people are told when the store cannot be written for this long; a database restarts or fails over in less",
        unit="s",
        least=1.0,
    )
    retention_days: float = setting(400.0, "a year of history and a month more", unit="days", least=1)
    store_bytes: int = setting(
        8 << 30,
        "what the store may take; beyond it the oldest goes, first that of users who take more than their share",
        unit="bytes",
        least=1 << 20,
    )

    def check_loaded(self) -> None:
        require_listen("listen", self.listen)
        require_wires("url", self.url, self.wire)
        require_absolute("state", self.state)
        require_database("database", self.database)
        if self.resume:
            require_absolute("resume", self.resume)


@dataclass(frozen=True, slots=True)
class Limits:
    """Blast radius (promise 4)."""

    drain_count: int = setting(8, "nodes of ours drained at once", unit="nodes", least=0)
    drain_fraction: float = setting(0.1, "share of a partition drained by us at once", least=0.0, most=1.0)
    drain_per_switch: int = setting(
        4,
        "nodes of one switch (topology.conf) drained by us at once. Of 32 nodes under a leaf that fail as RSC-1's do and "
        "take three days to repair, a fifth is out in 1 of 2,000 moments: it is more likely the switch",
        unit="nodes",
        least=0,
    )
    drain_per_hour: int = setting(6, "drains in an hour", unit="nodes", least=0)
    keep_healthy: int = setting(1, "usable nodes that must remain in each partition", unit="nodes", least=0)
    breaker_nodes: int = setting(
        5,
        "this many nodes failing within breaker_window_s is the cluster's fault, not theirs: freeze and call",
        least=2,
    )
    breaker_switch_nodes: int = setting(
        3,
        "this many nodes of one switch failing within breaker_window_s are its fault, or that of what else they share "
        "(power, cooling): none of them is drained, and people are asked",
        least=2,
    )
    breaker_window_s: float = setting(60.0, "window of the breaker", unit="s", least=1)
    stop_confidence: float = setting(
        0.5,
        "by a verdict less sure than this, or than judgement.act_confidence, a running job gives back no spare node that is "
        "only suspected; and a job that ended by its program's error is tried again where it gained steps, not held. At the "
        "default it is as likely wrong as right; a bare traceback is surer",
        least=0.0,
        most=1.0,
    )
    restarts_without_progress: int = setting(
        2,
        "the same cause this often without steps gained holds the job; different causes, twice as often",
        unit="restarts",
        least=1,
    )
    restarts_per_job: int = setting(
        1000,
        "an upper bound whatever the progress: a job on 2,048 nodes is restarted eight times a day for months",
        unit="restarts",
        least=0,
    )
    suspect_job_nodes: int = setting(
        3,
        "a job in so many of whose attempts within suspect_job_window_s another node broke for the same cause may break "
        "them: it is held, and gets no more nodes; a healthy job of 64 nodes loses as many in a day once in 10,000 days",
        unit="attempts",
        least=2,
    )
    suspect_job_fraction: float = setting(
        0.05,
        "or this share of its nodes, where that is more: of 2,048 nodes a dozen break in a day whatever runs on them",
        least=0.0,
        most=1.0,
    )
    suspect_job_window_s: float = setting(86_400.0, "window of suspect_job_nodes", unit="s", least=60)
    restarts_per_hour: int = setting(
        100,
        "restarts and holds of all jobs in an hour, each attempt counts; a lost node ends a few, a storm of failures is a "
        "person's matter",
        least=0,
    )
    restarts_fraction: float = setting(
        1.0, "or this share of the jobs that Slurm knows as begun: all of them may fall with one file system", least=0.0
    )
    silent_restarts_per_hour: int = setting(
        6,
        "of these, restarts whose only ground is that a running job is silent: a wrong one destroys work, and a hundred "
        "jobs rarely hang this often",
        least=0,
    )
    silent_restarts_fraction: float = setting(
        0.05, "or this share of the running jobs: of 500 jobs, 25 in an hour", least=0.0, most=1.0
    )
    restarts_user_fraction: float = setting(
        0.5,
        "what one user's jobs may take of the two numbers above where others have jobs, too, or the fraction of the user's "
        "own jobs where that is more: one program that fails or hangs everywhere must not keep the jobs of others waiting",
        least=0.0, most=1.0,
    )  # fmt: skip
    hung_jobs: int = setting(
        3,
        "this many jobs called hung within hung_window_s share one cause, which a restart of each does not mend (a network, "
        "a file system, or we are deaf): none is stopped for it, people are called. One user's, which one program may hang, "
        "count against that user's jobs; against those of others fewer than half of this number",
        least=2,
    )
    hung_fraction: float = setting(
        0.02, "or this share of the running jobs, where that is more: of 1,000 jobs, 20", least=0.0, most=1.0
    )
    hung_window_s: float = setting(
        120.0, "window of hung_jobs; how soon a hang is called differs by this much between jobs", unit="s", least=1
    )

    def check_loaded(self) -> None:
        """A file must not allow every node of a partition to be drained."""
        if self.keep_healthy == 0 and self.drain_fraction >= 1.0 and self.drain_count > 0 and self.drain_per_hour > 0:
            raise InvalidSetting(
                "keep_healthy",
                "with drain_fraction = 1.0 and keep_healthy = 0 all nodes of a partition could be drained",
                "write keep_healthy = 1 or more, or a smaller drain_fraction",
            )


@dataclass(frozen=True, slots=True)
class Recovery:
    opt_in: bool = setting(True, 'restart only jobs whose comment says so: {"sentinel": {"restart": true}}')
    checkpoint_level: str = setting(
        "checksum",
        "structural, checksum or content: proof a checkpoint needs before a restart",
        words=("structural", "checksum", "content"),
    )
    inventory_s: float = setting(20.0, "deadline for nodes to list and check a job's checkpoints", unit="s", least=1)
    storage_s: float = setting(
        600.0,
        "a file system that hangs, cannot be read or lacks saves that were seen is waited for this long; then the job's "
        "script resumes it",
        unit="s",
        least=1,
    )
    quarantine_s: float = setting(
        60.0, "moving checkpoints aside is tried this long; the restart goes on without it", unit="s", least=1
    )
    pending_s: float = setting(
        90.0, "Slurm's KillWait of 30 s, epilogs and reserve until the job is pending", unit="s", least=1
    )
    refused_s: float = setting(
        300.0,
        "what Slurm refuses to do with a job, or to set down, for an unknown reason, is asked for again for this long; then "
        "a person decides: longer than a reconfiguration of slurmctld takes, and soon enough that somebody looks",
        unit="s",
        least=0,
    )
    restart_takes_s: float = setting(
        60.0,
        "from a job's stop to its next start at the earliest: epilogs, the choice of a checkpoint, a round of Slurm's "
        "scheduler; a job whose deadline leaves less than that is not requeued, since Slurm would end it unstarted",
        unit="s",
        least=0,
    )
    resume_choices: int = setting(
        20,
        "a waiting job's checkpoint is chosen this often, where another job of its run saved since: nodes read each one; "
        "then its script resumes as it does",
        least=1,
    )
    launch_s: float = setting(
        30.0,
        "a job's launcher must have started its next step in the allocation within this time, else the job is requeued: it "
        "looks twice a second for its order, which a shared file system may show some seconds late",
        unit="s",
        least=1,
    )
    confirm_s: float = setting(600.0, "the restarted job must run and gain a step within this time", unit="s", least=1)
    local_survives: bool = setting(
        True, "node-local checkpoint folders outlive the job (no private tmpfs, no epilog that wipes them)"
    )
    bad_numbers: str = setting(
        "tell",
        "a running job whose numbers stay bad: tell its people, hold it, or restart it before the onset; a program's words "
        "are no proof, and ending a job that might go on costs more than a message: a job's comment may say otherwise",
        words=("tell", "hold", "restart"),
    )
    wait_s: float = setting(
        4 * 3600.0, "until another node is there: a drained one is reset and tested, or repaired", unit="s", least=0
    )
    smaller_for_s: float = setting(
        4 * 3600.0,
        "how long an elastic job that starts on fewer nodes stays so, until its next restart: it starts smaller where that "
        "loses less work than waiting",
        unit="s",
        least=0,
    )
    spares: str = setting(
        "",
        "name of a reservation (Flags=FLEX,REPLACE,IGNORE_JOBS) of nodes kept for jobs that lost a node and are requeued; "
        "empty: none, since they stand idle otherwise",
    )
    step_time_s: float = setting(10.0, "assumed when a job printed none", unit="s", least=0.001)
    restore_bytes_per_s: float = setting(
        2e9, "reading a global checkpoint, for the cost of choosing it", unit="bytes/s", least=1
    )


@dataclass(frozen=True, slots=True)
class Prometheus:
    """Signals of what many nodes share, as PromQL (rules/signals/prometheus.toml)."""

    url: str = setting("", "where Prometheus answers; empty: it is not asked")
    rules: str = setting("", "the site's own signals and counters; the same id overrides a shipped one", unit="path")
    deadline_s: float = setting(
        2.0, "one query; a verdict waits for it, and what is slower is *not known*", unit="s", least=0.1
    )
    every_s: float = setting(60.0, "asked this often while nothing fails", unit="s", least=5)
    answer_bytes: int = setting(4 << 20, "longest answer that is read", unit="bytes", least=4096)
    authorization_file: str = setting("", "a token, or the whole Authorization header, in one line", unit="path")
    ca_file: str = setting("", "authority that signed its certificate; empty: the system's", unit="path")
    certificate_file: str = setting("", "our certificate, where it asks for one", unit="path")
    key_file: str = setting("", "its key, where that is a file of its own", unit="path")

    def check_loaded(self) -> None:
        if self.url:
            require_http("url", self.url)


@dataclass(frozen=True, slots=True)
class Settings:
    """The daemon's file (``sentinel.toml``)."""

    cluster: str = setting("", "name of the cluster; empty: Slurm's ClusterName")
    slurm: Slurm = section(Slurm)
    daemon: Daemon = section(Daemon)
    judgement: Judgement = section(Judgement)
    limits: Limits = section(Limits)
    modes: Modes = section(Modes)
    recovery: Recovery = section(Recovery)
    alerts: Alerts = section(Alerts)
    report: WeeklyReport = section(WeeklyReport)
    prometheus: Prometheus = section(Prometheus)
    diagnostics: Diagnostics = section(Diagnostics)
    returns: ReturnSettings = section(ReturnSettings)
    page: Page = section(Page)
