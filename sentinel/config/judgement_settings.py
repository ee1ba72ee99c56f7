"""The settings of detection and judgement, ``[judgement]`` of the daemon's file."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.config.settings_toml import setting


@dataclass(frozen=True, slots=True)
class Judgement:
    rules: str = setting("", "folder of the site's own rules; the same id overrides a shipped one", unit="path")
    settle_s: float = setting(
        0.3, "evidence of one failure comes in a burst; a verdict waits this long for the rest of it", unit="s", least=0
    )
    log_settle_s: float = setting(
        2.0, "after a job ended, its log's last lines need this long to arrive", unit="s", least=0
    )
    act_confidence: float = setting(
        0.5,
        "below it the verdict is shown and nothing is drained; confidence is as often right as it says",
        least=0.0,
        most=1.0,
    )
    stall_floor_s: float = setting(
        12.0,
        "no job is called hung before this silence, however quick its steps, unless one of its tasks is stopped",
        unit="s",
        least=0.5,
    )
    stall_steps: float = setting(3.0, "silence longer than this many of the job's own steps", unit="steps", least=1)
    stall_confirm: float = setting(
        1.1,
        "a silence in which nobody sees that the job only waits must last this many times what is usual",
        unit="times",
        least=1,
    )
    stall_startup_s: float = setting(
        600.0, "after its first steps a job may still compile and warm up, but not longer than this", unit="s", least=1
    )
    stall_first_step_s: float = setting(
        1800.0,
        "a restarted job, of which an earlier attempt printed steps, may take this long to its first one, or three times as "
        "long as that attempt did if that is longer, and twice that while its processes work: what waits in a "
        "collective gives up by itself before (NCCL after 10 min, Gloo after 30)",
        unit="s",
        least=10,
    )
    stall_first_pause_s: float = setting(
        60.0,
        "a job that only waits, and of which neither the pauses nor an hour of steps are known, may be in its first "
        "evaluation or wait for data (45 s were seen): sooner only its own answer that a collective is stuck makes it hung, "
        "or profiling fields that show every GPU waiting inside one",
        unit="s",
        least=1,
    )
    view_share: float = setting(
        0.1,
        "this share of the nodes falling silent or coming back within view_window_s has one cause, which is rarely theirs: "
        "silence of jobs is not judged then",
        least=0.01,
        most=1.0,
    )
    view_nodes: int = setting(3, "and at least so many: in a small cluster one node is a large share", least=2)
    view_window_s: float = setting(
        30.0,
        "agents fall silent within a heartbeat's patience of each other, and come back within their backoff",
        unit="s",
        least=1,
    )
    view_settle_s: float = setting(
        10.0,
        "agents try again every 5 s at the latest: after so long without such a change their backlog is taken in, and "
        "silence is judged again",
        unit="s",
        least=0,
    )
    view_gap_s: float = setting(
        5.0,
        "the daemon looks four times a second: one look that is so late means that it stood still itself",
        unit="s",
        least=1,
    )
    bad_prints: int = setting(
        5, "a skipped step is one or two; so many printed losses in a row that are no numbers stay so", least=2
    )
    bad_numbers_s: float = setting(
        600.0, "of a job that prints seldom, fewer are enough when they are this long apart", unit="s", least=1
    )
    group_s: float = setting(
        120.0, "evidence about one job or node within this time belongs to one failure", unit="s", least=1
    )
