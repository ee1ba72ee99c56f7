"""Saves the files that explain a job's failure in one folder, before the next job or a cleaning epilog removes them.

Three processes do this. The first, as root, reads the node's own data (kernel lines, leftover processes) and writes the
folder. The second becomes the job's user, finds that user's files (``finding``) and sends their content through a pipe.
The third becomes the user, too, where there are error files, and reads what they say. So root opens no file of a user and
runs no rule over what one wrote, and a user's process cannot reach the agent's folders. A file system that hangs, or text
that takes long to read, blocks only the second or the third process, which is reported.

Messages: ``evidence`` (items), and last ``collected`` (what was found, and the folder).
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sentinel.adapters.host.kmsg import KernelLog, boot_id
from sentinel.agent.probes import become, begin, say
from sentinel.agent.probes.findings import Findings
from sentinel.agent.probes.leftovers import Leftover, end, left_behind
from sentinel.agent.process.children import standing
from sentinel.errors import SentinelError
from sentinel.text import json_with_bytes

FRAME = struct.Struct("!IQ")  # length of the header, length of the content, in bytes
HEADER_BYTES = 4 << 20
HEADERS_BYTES = 64 << 20  # of all headers: they are kept in memory
WIRE_BYTES = 2 << 20  # most bytes of all dump summaries: they must fit in one request
HALF_DONE_S = 3600.0  # age at which the unfinished folder of a killed collector is removed
JUDGE_S = 2.0  # left for reading error files where finding them took all of its time; loading the rules takes 1.5 s
FEW_CALLS = 8  # newest collectives kept per process group if the summaries are too large
_KINDS = ("dump", "error", "log", "full")  # parts of names of files that root writes
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")

Put = Callable[[Mapping[str, Any], bytes], None]
Take = Callable[[dict[str, Any], bytes], None]


def main() -> None:
    arguments = begin()
    folder = Path(arguments["folder"])
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    user = _as_user(arguments, _look) if arguments.get("uid") is not None and arguments.get("look") else None
    bundle = Bundle(partial, arguments)
    bundle.node()
    if user is not None:
        bundle.user(*user)
    bundle.finish(folder)


def _look(arguments: Mapping[str, Any], put: Put) -> None:
    from sentinel.agent.probes.finding import look

    become(int(arguments["uid"]), arguments.get("gid"))
    look(arguments, put)


def _as_user(arguments: Mapping[str, Any], work: Callable[[Mapping[str, Any], Put], None]) -> tuple[int, int]:
    """Fork a process that becomes the job's user in ``work`` and sends what it finds.

    Returns: (pid, read end of its pipe).
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid:
        os.close(theirs)
        return pid, ours
    try:
        os.close(ours)
        os.close(0)
        work(arguments, lambda header, content: _put(theirs, header, content))
        _put(theirs, {"last": True}, b"")
    except (OSError, ValueError, TypeError, KeyError, MemoryError, RecursionError, SentinelError) as error:
        _put(theirs, {"note": f"{type(error).__name__}: {error!s:.300}"}, b"")
    finally:  # the forked process ends here in any case; a missing last message is reported
        os._exit(0)


def _put(pipe: int, header: Mapping[str, Any], content: bytes) -> None:
    raw = json.dumps(header).encode()
    view = memoryview(FRAME.pack(len(raw), len(content)) + raw + content)
    while view:
        view = view[os.write(pipe, view) :]


class Frames:
    """Reads header and content pairs from the pipe, within size limits and a deadline."""

    def __init__(self, pipe: int, most_bytes: int, until_s: float) -> None:
        self._pipe = pipe
        self._left = most_bytes
        self._headers_left = HEADERS_BYTES
        self._until_s = until_s
        self.trouble = ""

    def __iter__(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        while (head := self._take(FRAME.size)) is not None and head:
            header_bytes, content_bytes = FRAME.unpack(head)
            if header_bytes > min(HEADER_BYTES, self._headers_left) or content_bytes > self._left:
                self.trouble = "it said more than it may"
                return
            self._left -= content_bytes
            self._headers_left -= header_bytes
            header, content = self._take(header_bytes), self._take(content_bytes)
            if header is None or content is None:
                return
            try:
                told = json_with_bytes(header)
            except ValueError:
                told = None
            if not isinstance(told, dict):
                self.trouble = "it said something that cannot be read"
                return
            yield told, content

    def _take(self, count: int) -> bytes | None:
        """Read exactly ``count`` bytes; empty at the end of the stream; None on an error or a passed deadline."""
        taken = bytearray()
        while len(taken) < count:
            left_s = self._until_s - time.monotonic()
            if left_s <= 0 or not select.select([self._pipe], [], [], left_s)[0]:
                self.trouble = "it did not answer within the deadline"
                return None
            part = os.read(self._pipe, min(count - len(taken), 1 << 20))
            if not part:
                if taken:
                    self.trouble = "it ended in the middle of a word"
                return None if taken else b""
            taken += part
        return bytes(taken)


class Bundle:
    """The folder for one attempt on this node, while it is being written."""

    def __init__(self, folder: Path, arguments: Mapping[str, Any]) -> None:
        self._folder = folder
        self._arguments = arguments
        self._files: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._dumps: list[dict[str, Any]] = []
        self._left: list[Leftover] = []
        self._hung: int | None = None
        self._findings = Findings(arguments)
        folder.mkdir(mode=0o700, parents=True)

    # ------------------------------------------------------------------------------------------------ data of the node

    def node(self) -> None:
        self._leftovers()
        lines = list(self._kernel()) if self._arguments.get("kernel") else []
        if lines:
            self._write("kernel.txt", "\n".join(lines).encode("utf-8", "surrogateescape") + b"\n", "the kernel's log")
        if self._arguments.get("gpus_seen"):
            samples = Path(self._arguments["gpus_seen"])
            self._write("gpus.json", samples.read_bytes(), "GPU telemetry")
            samples.unlink()

    def _kernel(self) -> Iterator[str]:
        """The newest kernel lines since the job began."""
        began_s, most = float(self._arguments["began_s"]), int(self._arguments["kernel_lines"])
        try:
            source = KernelLog(self._arguments["kernel"], replay=True, boot=boot_id())
            try:
                records = [record for record in source.read() if record.at_s >= began_s]
            finally:
                source.close()
        except SentinelError as error:
            self._notes.append(str(error))
            return
        if len(records) > most:
            self._notes.append(f"{len(records) - most} older kernel lines were left out")
        for record in records[-most:]:
            at = datetime.fromtimestamp(record.at_s, UTC).isoformat(timespec="milliseconds")
            yield f"{at} <{record.facility << 3 | record.priority}> {record.text}".replace("\n", " ")

    def _leftovers(self) -> None:
        arguments = self._arguments
        others = {int(job): uid for job, uid in arguments["others"].items()}
        again = Path(arguments["here_again"])
        if again.exists():  # requeued to this node: processes of the new attempt have the same job id and control group
            return
        found = left_behind(
            int(arguments["job"]), arguments.get("uid"), arguments["gpus"], node=arguments["node"], others=others
        )
        if found and arguments.get("end_stray"):
            found = end(found, float(arguments["term_s"]), again)
        self._left = found
        if found:
            self._write("processes.json", json.dumps([item.to_json() for item in found]).encode(), "/proc")

    # ------------------------------------------------------------------------------------------------ files of the user

    def user(self, pid: int, pipe: int) -> None:
        """Receive what the user's processes send, until their deadlines."""
        until_s = time.monotonic() + float(self._arguments["user_s"])
        most = int(self._arguments["total_bytes"]) + int(self._arguments["log_bytes"])
        self._receive(pid, Frames(pipe, most, until_s), self._take, "the job's files")
        os.close(pipe)
        if self._findings.error_files:
            pid, pipe = _as_user(self._arguments, self._findings.judge)
            self._receive(pid, Frames(pipe, 0, until_s + JUDGE_S), self._judged, "what the job's error files say")
            os.close(pipe)

    def _receive(self, pid: int, frames: Frames, take: Take, what: str) -> None:
        whole = False
        for header, content in frames:
            whole = "last" in header
            if "note" in header:
                self._notes.append(str(header["note"])[:500])
            elif not whole:
                take(header, content)
        if not whole and not frames.trouble:
            frames.trouble = "it ended before it had seen all"
        if frames.trouble:
            where = standing(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._notes.append(f"{what}, read as uid {self._arguments['uid']}: {frames.trouble} ({where})")
        self._reap(pid)

    def _reap(self, pid: int) -> None:
        """Wait briefly for the user's process to exit; one that is stuck in the kernel is left behind and reported."""
        until_s = time.monotonic() + 1.0
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > until_s:
                self._hung = pid
                return
            time.sleep(0.02)

    def _judged(self, header: dict[str, Any], _: bytes) -> None:
        try:
            self._findings.judged(header)
        except (KeyError, TypeError) as error:  # a user's process says what it likes
            self._notes.append(f"what the job's error files say cannot be read: {error!r:.200}")

    def _take(self, header: dict[str, Any], content: bytes) -> None:
        kind, path, dump = header.get("kind"), str(header.get("path")), header.get("dump")
        if kind not in _KINDS or (kind == "dump" and not isinstance(dump, dict)):  # a user's process says what it likes
            self._notes.append(f"what the job's user sent cannot be read: {kind!r:.40} of {path:.200}")
            return
        if kind == "dump":
            self._dumps.append({"path": path, **header["dump"]})
        elif kind == "error":
            self._findings.error_file(path, content)
        elif kind == "full":
            self._findings.full = path
            return
        if content:
            number = sum(1 for file in self._files if file["kind"] == kind)
            plain = _PLAIN.sub("_", path.rpartition("/")[2])[-80:]
            name = "log-end.txt" if kind == "log" else f"{kind}-{number:03d}-{plain}"
            told = {key: header.get(key) for key in ("size", "changed", "whole")}
            self._write(name, content, path, kind=kind, **told)

    # ------------------------------------------------------------------------------------------------ the end

    def _write(self, name: str, content: bytes, origin: str, *, kind: str = "node", **told: Any) -> None:
        try:
            (self._folder / name).write_bytes(content)
        except OSError as error:
            self._notes.append(f"{name} is not kept: {error.strerror}")
            return
        self._files.append({"file": name, "kind": kind, "from": origin, "bytes": len(content), **told})

    def finish(self, folder: Path) -> None:
        """Move the folder to its final place if it contains anything, and report what was found."""
        arguments = self._arguments
        telling = bool(self._dumps or any(file["kind"] == "error" for file in self._files) or arguments["why"])
        dumps = fitting(self._dumps)
        about = {
            name: arguments[name] for name in ("job", "attempt", "node", "uid", "began_s", "ended_s", "code", "why")
        }
        about |= {"files": self._files, "notes": self._notes, "dumps": len(self._dumps)}
        kept = None
        if telling:
            try:
                (self._folder / "about.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
                (self._folder / "dumps.json").write_text(json.dumps(dumps), encoding="utf-8")
                shutil.rmtree(folder, ignore_errors=True)  # left by a collector that died before its last message
                self._folder.rename(folder)
                kept = str(folder)
            except OSError as error:
                self._notes.append(f"nothing is kept: {error.strerror}")
        shutil.rmtree(self._folder, ignore_errors=True)
        prune(folder.parent, int(arguments["bundles"]), int(arguments["bundles_bytes"]), spare=folder.name)
        items = self._findings.evidence(kept, self._files, self._dumps, self._left, self._notes, self._hung)
        if items:
            say({"type": "evidence", "items": items})
        done = {"type": "collected", "folder": kept, "dumps": len(dumps), "notes": self._notes, "hung": self._hung}
        say(done | {"errors": sum(file["kind"] == "error" for file in self._files), "left": len(self._left)})


def prune(bundles: Path, most: int, most_bytes: int, spare: str) -> None:
    """Remove the oldest bundles until the rest is within the limits, except ``spare``; also old unfinished ones."""
    found = []
    for folder in bundles.iterdir():
        if folder.name.startswith("."):
            if time.time() - folder.stat().st_mtime > HALF_DONE_S:
                shutil.rmtree(folder, ignore_errors=True) if folder.is_dir() else folder.unlink(missing_ok=True)
        elif folder.is_dir():
            size = sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder))
            found.append((folder.stat().st_mtime, size, folder))
    found.sort()
    total = sum(size for _, size, _ in found)
    for count, (_, size, folder) in enumerate(found):
        if folder.name != spare and (len(found) - count > most or total > most_bytes):
            shutil.rmtree(folder, ignore_errors=True)
            total -= size


def fitting(dumps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shorten dump summaries until they fit in one answer: first fewer calls in each, then fewer summaries."""
    if sum(len(json.dumps(item)) for item in dumps) <= WIRE_BYTES:
        return dumps
    size, made = 0, []
    for item in dumps:
        try:
            for group in item.get("trace", {}).get("groups", []):
                group["calls"] = group["calls"][-FEW_CALLS:]
        except (AttributeError, KeyError, TypeError):  # a user's process made it
            continue
        size += len(json.dumps(item))
        if size > WIRE_BYTES:
            break
        made.append(item)
    return made


if __name__ == "__main__":
    main()
    sys.stdout.flush()
