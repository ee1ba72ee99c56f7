"""What slurm.conf needs for Sentinel, as a changed copy of the site's own text. Pure; nothing is written here.

What the site has stays: its own prolog goes on running beside ours, flags and parameters are added to those that are set,
and a hook of which Slurm takes only one is left to the site, with a note that says what to call from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from sentinel.cli.install.conf_lines import Line, lines_in
from sentinel.errors import FileError

ETC = "/etc/slurm"
_LEAST_JOB_AGE_S = 300
_PROLOG_S = 20  # of prolog/10-sentinel: deploy/slurm/sentinel.conf
# Set where the site has not: (key, value, why).
_DEFAULTS = (
    ("PrologEpilogTimeout", "120", "a stuck file system must not hold a node for ever"),
    ("BatchStartTimeout", "60", "a prolog longer than this would make a batch job look lost"),
    ("MinJobAge", "600", "how long a finished job can still be requeued"),
    ("JobFileAppend", "1", "a restarted job goes on writing to the log it has"),
)
_ADDED = (
    ("PrologFlags", "Alloc", "a bad node is found before the job's first step"),
    ("SchedulerParameters", "nohold_on_prolog_fail", "a job whose prolog failed is not held for it"),
)


_HOOKS = ("Prolog", "Epilog", "TaskProlog", "TaskEpilog", "PrologSlurmctld", "EpilogSlurmctld", "HealthCheckProgram")


@dataclass
class SlurmConf:
    """A slurm.conf: its lines as they are, those of the files it includes among them, and what Sentinel changes."""

    lines: list[Line]
    notes: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)  # to be made: link -> the site's own script
    elsewhere: list[FileError] = field(default_factory=list)  # changes of included files: a person's to make
    _new: list[str] = field(default_factory=list)

    def get(self, key: str) -> str:
        """The value that counts: the last one; empty if it is not set."""
        found = ""
        for _, value in self._of(key):
            found = value
        return found.strip('"')

    def set(self, key: str, value: str, why: str) -> None:
        places = [place for place, _ in self._of(key)]
        if not places:
            self._new += [f"# {why}", f"{key}={value}"]
        elif self.get(key) != value:
            line = self.lines[places[-1]]
            if line.file is not None:
                said, fix = "stands in an included file, which is not written here", f"write there {key}={value}"
                self.elsewhere.append(FileError(line.file, said, line=line.number, key=key, fix=fix))
                return
            text = f"{key}={value}"
            self.lines[places[-1]] = replace(line, raw=(f"{text} {line.comment}".rstrip(),), text=text)

    def _of(self, key: str) -> Iterator[tuple[int, str]]:
        for place, line in enumerate(self.lines):
            value = line.value_of(key)
            if value is not None:
                yield place, value

    @property
    def changed(self) -> str:
        """The text of slurm.conf itself with Sentinel's changes."""
        lines = [raw for line in self.lines if line.file is None for raw in line.raw]
        return "\n".join([*lines, *(["", "# Sentinel", *self._new] if self._new else [])]) + "\n"


def planned(site: str | Sequence[Line]) -> SlurmConf:
    """The changes of a slurm.conf whose text, or lines with those of included files, these are."""
    conf = _conf(site)
    _folder(conf, "Prolog", "prolog.d", "refuses a node only on positive proof against it")
    _folder(conf, "Epilog", "epilog.d", "tells the node's agent that a job has left; always exits 0")
    _single(conf, "TaskProlog", f"{ETC}/sentinel/task-sentinel", "hands a restarted job its resume point")
    _single(conf, "EpilogSlurmctld", f"{ETC}/sentinel/slurmctld-sentinel", "tells the daemon at once that a job ended")
    for key, word, why in _ADDED:
        words = [part for part in conf.get(key).split(",") if part]
        if word.lower() not in [part.lower() for part in words]:
            conf.set(key, ",".join([*words, word]), why)
    for key, value, why in _DEFAULTS:
        if not conf.get(key):
            conf.set(key, value, why)
    age = conf.get("MinJobAge")
    if age.isdecimal() and 0 < int(age) < _LEAST_JOB_AGE_S:  # 0: never forgotten
        conf.set("MinJobAge", "600", "")
    for key in ("PrologEpilogTimeout", "BatchStartTimeout"):
        limit = conf.get(key)
        if limit.isdecimal() and int(limit) <= _PROLOG_S:
            effect = "drains the node" if key == "PrologEpilogTimeout" else "makes a batch job look lost"
            conf.notes.append(
                f"{key}={limit} is not above the deadline of Sentinel's prolog ({_PROLOG_S} s): Slurm {effect} "
                "where a prolog takes longer; raise it"
            )
    if conf.get("JobFileAppend") == "0":
        conf.set("JobFileAppend", "1", "")
    if conf.get("JobRequeue") == "0":
        said = "only jobs submitted with --requeue can be restarted, and those that still run and whose comment asks for it"
        conf.notes.append(f"JobRequeue=0: {said}")
    return conf


def hook_folder(site: str | Sequence[Line], key: str, usual: str) -> str:
    """The folder whose scripts Slurm runs for ``key`` (Prolog or Epilog): the site's, or the one that Sentinel brings."""
    value = _conf(site).get(key)
    return str(PurePosixPath(value).parent) if value.endswith("/*") else f"{ETC}/{usual}"


def needs_hook(site: str | Sequence[Line], path: str, root: Path = Path("/")) -> bool:
    """Whether this slurm.conf needs a file at ``path``: it names it, or a folder in which it is the only one.

    Slurm 24.11 takes a folder without a script for a prolog or epilog that failed, and drains the node.
    """
    conf = _conf(site)
    # Every value: Slurm 24.05 runs all of several Prolog lines.
    values = {value.strip('"') for key in _HOOKS for _, value in conf._of(key)}
    if path in values:
        return True
    folder = root / str(PurePosixPath(path).parent).lstrip("/")
    others = [f"/{entry.relative_to(root)}" for entry in folder.glob("[!.]*") if entry.name != PurePosixPath(path).name]
    patterns = [value for value in values if PurePosixPath(path).match(value)]  # by component, as glob(3) does
    return any(not any(PurePosixPath(other).match(pattern) for other in others) for pattern in patterns)


def _conf(site: str | Sequence[Line]) -> SlurmConf:
    return SlurmConf(list(lines_in(site) if isinstance(site, str) else site))


def _folder(conf: SlurmConf, key: str, usual: str, why: str) -> None:
    """A hook of which Slurm runs all scripts of a folder."""
    value = conf.get(key)
    if value.endswith("/*"):
        return  # ours is put into that folder
    if value:
        conf.links[f"{ETC}/{usual}/50-site"] = value
        conf.notes.append(f"{key}: your {value} goes on running, as {ETC}/{usual}/50-site")
    conf.set(key, f"{ETC}/{usual}/*", why)


def _single(conf: SlurmConf, key: str, path: str, why: str) -> None:
    """A hook of which Slurm runs one."""
    value = conf.get(key)
    if value and value != path:
        conf.notes.append(f"{key}={value} is yours and stays. Call {path} from it, with the same environment: it {why}")
        return
    conf.set(key, path, why)
