"""An installed DCGM for tests: a real one where ``SENTINEL_DCGM`` names its folder, and the double laid out alike.

SENTINEL_DCGM=FOLDER          bin/dcgmi, lib (or lib64), and DCGM's Python bindings anywhere below
SENTINEL_DCGM_ENGINE=COMMAND  starts a host engine in the foreground; {address} stands for a port or a socket's path.
                              Without it: FOLDER/bin/nv-hostengine. With GPUs, or with NVML injection
SENTINEL_NVVS_SCRIPT=FILE     what the scripted plugin answers (nvvs_plugin.cpp), where it is installed among nvvs' plugins
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodes.nvml_gpus import uuid_of

ROOT = Path(__file__).parents[3]
DOUBLE = ROOT / "deploy" / "lab" / "fake_dcgm"
REAL = os.environ.get("SENTINEL_DCGM", "")
SCRIPT = os.environ.get("SENTINEL_NVVS_SCRIPT", "")
MADE_UP = os.environ.get("NVML_INJECTION_MODE") == "True"
PATIENCE_S = 120.0  # far above what anything takes here: the machine may be busy

SEVERITIES = {52: 2, 58: 2, 63: 4}  # of DCGM's own table of errors, 4.6

Said = list[dict[str, Any]]


def bindings_below(folder: str) -> list[Path]:
    """Where DCGM's Python modules lie in an installation; links are followed."""
    return [Path(path) for path, _, files in os.walk(folder, followlinks=True) if folder and "pydcgm.py" in files]


def probed(arguments: dict[str, Any], environment: dict[str, str], enough: Callable[[Said], bool]) -> Said:
    """What the process of the agent's GPU probe says until it is enough, or until it ends by itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sentinel.agent.probes.dcgm"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    late = threading.Timer(PATIENCE_S, process.kill)
    late.start()
    said: Said = []
    try:
        process.stdin.write(json.dumps(arguments).encode() + b"\n")
        process.stdin.flush()
        for line in process.stdout:
            said.append(json.loads(line))
            if enough(said):
                break
        assert late.is_alive(), said[-5:]
    finally:
        late.cancel()
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait()
    return said


class Dcgm:
    """One installation and its host engine on ``address``: a port, or the path of a socket."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address
        self.environment: dict[str, str] = {}
        self._engine: subprocess.Popen[bytes] | None = None

    @property
    def dcgmi(self) -> str:
        raise NotImplementedError

    @property
    def bindings(self) -> str:
        raise NotImplementedError

    @property
    def where(self) -> dict[str, str]:
        """As the adapters want it."""
        if self.address.isdigit():
            return {"host": f"127.0.0.1:{self.address}", "socket": ""}
        return {"host": "", "socket": self.address}

    @property
    def host(self) -> str:
        """As ``dcgmi --host`` and the hooks want it."""
        return self.where["host"] or f"unix://{self.address}"

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        self._engine = subprocess.Popen(
            self.command(), env={**os.environ, **self.environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, cwd=self.folder,  # where nvvs writes its log
        )  # fmt: skip
        end_s = time.monotonic() + PATIENCE_S
        while not self._listens():
            assert self._engine.poll() is None, f"{self.command()} ended with {self._engine.returncode}"
            assert time.monotonic() < end_s, f"nothing listens on {self.address}"
            time.sleep(0.05)

    def _listens(self) -> bool:
        try:
            if self.address.isdigit():
                socket.create_connection(("127.0.0.1", int(self.address)), timeout=1.0).close()
            else:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(self.address)
        except OSError:
            return False
        return True

    def kill(self) -> None:
        if self._engine is not None:
            os.killpg(self._engine.pid, signal.SIGKILL)
            self._engine.wait(PATIENCE_S)
            self._engine = None

    def freeze(self) -> None:
        assert self._engine is not None
        os.killpg(self._engine.pid, signal.SIGSTOP)

    @property
    def gpus(self) -> int:
        """How many GPUs tests may use: four at most."""
        return 4

    def inject(self, gpu: int, field: int, value: int) -> None:
        """A value of a field, as the engine's own injection makes it."""
        raise NotImplementedError

    def lose(self, gpu: int) -> None:
        """The driver loses it. On a real engine: with made-up GPUs alone."""
        raise NotImplementedError

    def gives_back(self, gpu: int) -> None:
        raise NotImplementedError

    def detach(self) -> None:
        """The engine lets go of the driver and of all GPUs; since 4.5."""
        raise NotImplementedError

    def attach(self) -> None:
        raise NotImplementedError

    def script(self, **tests: str) -> None:
        """What each test of levels 2 to 4 does from now on, in the words of ``nvvs_plugin.cpp``; the others pass."""
        raise NotImplementedError

    def probe(self, enough: Callable[[Said], bool] = lambda _: False, **changes: Any) -> Said:
        """What the agent's GPU probe says until it is enough, or until it ends by itself."""
        arguments = {"bindings": self.bindings, **self.where, "connect_s": 15, "interval_s": 0.5, "health_s": 5,
                     "dcgmi": "/nowhere/dcgmi", **changes}  # fmt: skip
        return probed(arguments, {**os.environ, **self.environment, "PYTHONPATH": str(ROOT)}, enough)


class RealDcgm(Dcgm):
    """The one in ``SENTINEL_DCGM``, with made-up GPUs or with those of this machine."""

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder, address)
        installed = Path(REAL)
        libraries = [str(installed / name) for name in ("lib", "lib64") if (installed / name).is_dir()]
        path = os.pathsep.join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(os.pathsep)
        self.environment = {"LD_LIBRARY_PATH": path}

    @property
    def dcgmi(self) -> str:
        return str(Path(REAL) / "bin" / "dcgmi")

    @property
    def bindings(self) -> str:
        (folder, *_) = bindings_below(REAL)
        return str(folder)

    @property
    def gpus(self) -> int:
        there = Path("/proc/driver/nvidia/gpus")
        return min(4, len(list(there.iterdir()))) if there.is_dir() and not MADE_UP else 4

    def command(self) -> list[str]:
        given = os.environ.get("SENTINEL_DCGM_ENGINE", "")
        if given:
            return [word.replace("{address}", self.address) for word in shlex.split(given)]
        where = ["-b", "127.0.0.1", "-p", self.address] if self.address.isdigit() else ["-d", self.address]
        return [str(Path(REAL) / "bin" / "nv-hostengine"), "-n", *where]

    def inject(self, gpu: int, field: int, value: int) -> None:
        command = [
            self.dcgmi,
            "test",
            "--host",
            self.host,
            "--inject",
            "--gpuid",
            str(gpu),
            "-f",
            str(field),
            "-v",
            str(value),
        ]
        subprocess.run(
            command, env={**os.environ, **self.environment}, check=True, capture_output=True, timeout=PATIENCE_S
        )

    def _calls(self, name: str, *arguments: bytes) -> None:
        """A function of the engine's library, in a process of its own, since modules and library are loaded once."""
        program = (
            "import sys, os\n"
            "from sentinel.adapters.gpu.dcgm import Bindings, HostEngine\n"
            "host, socket, name, *rest = sys.argv[2:]\n"
            "bindings = Bindings(sys.argv[1])\n"
            "engine = HostEngine(bindings, host=host, socket=socket)\n"
            "bindings.call(name, engine._handle.handle, *map(os.fsencode, rest))\n"
        )
        subprocess.run(
            [sys.executable, "-c", program, self.bindings, *self.where.values(), name, *arguments], check=True,
            env={**os.environ, **self.environment, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=PATIENCE_S,
        )  # fmt: skip

    def lose(self, gpu: int) -> None:
        self._calls("dcgmRemoveNvmlInjectedGpu", uuid_of(gpu).encode())

    def gives_back(self, gpu: int) -> None:
        self._calls("dcgmRestoreNvmlInjectedGpu", uuid_of(gpu).encode())

    def detach(self) -> None:
        self._calls("dcgmDetachDriver")

    def attach(self) -> None:
        self._calls("dcgmAttachDriver")

    def script(self, **tests: str) -> None:
        Path(SCRIPT).write_text("".join(f"{name} {does}\n" for name, does in tests.items()))


class DoubleDcgm(Dcgm):
    """The stand-in of the lab; its state is a file."""

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder, address)
        self._state: dict[str, Any] = {
            "gpus": [
                {"index": n, "uuid": f"GPU-{n:08x}", "pci": f"0000:{0x1B + n:02x}:00.0", "fields": {}, "xids": []}
                for n in range(4)
            ],
            "refuse_s": 0.2,
        }
        self.environment = {"SENTINEL_FAKE_GPUS": str(folder / "gpus.json")}
        self._write(engine="down")

    def _write(self, **changes: Any) -> None:
        self._state.update(changes)
        temporary = self.folder / "gpus.tmp"
        temporary.write_text(json.dumps(self._state))
        temporary.replace(self.folder / "gpus.json")

    @property
    def dcgmi(self) -> str:
        return str(DOUBLE / "dcgmi")

    @property
    def bindings(self) -> str:
        return str(DOUBLE)

    def command(self) -> list[str]:
        return [sys.executable, str(DOUBLE / "nv-hostengine"), self.address]

    def start(self) -> None:
        super().start()
        self._write(engine=f"engine {time.monotonic_ns()}", hang_s=0)

    def kill(self) -> None:
        super().kill()
        self._write(engine="down")

    def freeze(self) -> None:
        super().freeze()
        self._write(hang_s=600)

    def inject(self, gpu: int, field: int, value: int) -> None:
        if field == 230:
            self._state["gpus"][gpu]["xids"].append({"xid": value, "at_us": int(time.time() * 1e6)})
        else:
            self._state["gpus"][gpu]["fields"][str(field)] = value
        self._write()

    def lose(self, gpu: int) -> None:
        self._state["gpus"][gpu]["status"] = "lost"
        self._write()

    def gives_back(self, gpu: int) -> None:
        self._state["gpus"][gpu]["status"] = "ok"
        self._write()

    def detach(self) -> None:
        for gpu in self._state["gpus"]:
            gpu["status"] = "detached"
        self._write()

    def attach(self) -> None:
        for gpu in self._state["gpus"]:
            gpu["status"] = "ok"
        self._write()

    def script(self, **tests: str) -> None:
        diag: dict[str, Any] = {"absent": [], "errors": [], "result": {}}
        for name, does in tests.items():
            what, _, rest = does.partition(" ")
            if what == "absent":
                diag["absent"].append(name)
            elif what == "skip":
                diag["result"][name] = "Skip"
            elif what == "fail":
                gpu, code, text = rest.split(" ", 2)
                severity = SEVERITIES[int(code)]
                diag["errors"].append(
                    {"test": name, "gpu": int(gpu), "code": int(code), "severity": severity, "text": text}
                )
            elif what == "sleep":
                diag |= {"sleep_s": float(rest), "sleep_in": name}
            else:
                diag |= {"sleep_s": 3600, "sleep_in": name, "stop_s": 4}  # hang: the engine kills it
        self._write(diag=diag)


KINDS = ("double", "real")


@contextmanager
def running(
    kind: str, folder: Path, address: str, patch: pytest.MonkeyPatch,
    real: object = REAL, lacking: str = "SENTINEL_DCGM names no installed DCGM",
) -> Iterator[Dcgm]:  # fmt: skip
    """One of ``KINDS`` with its engine; a real one is skipped, with the words of ``lacking``, unless ``real`` is true."""
    if kind == "real" and not real:
        pytest.skip(lacking)
    dcgm = RealDcgm(folder, address) if kind == "real" else DoubleDcgm(folder, address)
    for name, value in dcgm.environment.items():
        patch.setenv(name, value)
    dcgm.start()
    try:
        yield dcgm
    finally:
        dcgm.kill()
