"""Bounded, seeded fuzzing of checkpoint folders: files changed, cut, moved. The answer is valid, not, or not known."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.join import join
from sentinel.checkpoints.validate import validate

MOST_BYTES = 128 << 20  # of memory that looking at a hostile folder of a few KB may take
SPECIAL = st.sampled_from(
    [
        b"\xff" * 8,
        b"\0" * 8,
        b"PK\x05\x06",
        b"PK\x01\x02",
        b"\x80\x02",
        b"cos\nsystem\n(S'id'\ntR.",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"((((((((",
        b"]" * 64,
        b"2" * 200,
        b'{"a":',
        b"\xff\xff\xff\xff\xff\xff\xff\x7f{",
    ]
)


@pytest.fixture
def folders(make):
    make.dcp("run/step-10", step=10, ranks=2)
    return make.root / "run"


@settings(max_examples=30, phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_folder_has_an_answer(folders: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    root = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(folders, root)
    tracemalloc.start()
    try:
        for _ in range(data.draw(st.integers(1, 4))):
            change(root, data)
        for level in ("structural", "checksum", "content"):
            answer = validate(root / "step-10", level)
            assert answer.valid in (True, False, None) and "did not foresee" not in answer.reason
        assert isinstance(join([listing(root, "global", None, level="structural")]), list)
        _, peak = tracemalloc.get_traced_memory()
        assert peak < MOST_BYTES
    finally:
        tracemalloc.stop()
        shutil.rmtree(root.parent)


def change(root: Path, data: st.DataObject) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    if not files:
        return
    path = files[data.draw(st.integers(0, len(files) - 1))]
    what = data.draw(st.sampled_from(["bytes", "bytes", "bytes", "cut", "grow", "gone", "link", "folder", "name"]))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content)))
    if what == "bytes":
        new = data.draw(SPECIAL | st.binary(min_size=1, max_size=16))
        content[place : place + len(new)] = new
        path.write_bytes(content)
    elif what == "cut":
        path.write_bytes(content[:place])
    elif what == "grow":
        with path.open("ab") as file:
            file.truncate(1 << 24)  # sparse
    else:
        path.unlink()
        if what == "link":
            path.symlink_to(data.draw(st.sampled_from(["/dev/zero", "/etc/shadow", "../..", path.name])))
        elif what == "folder":
            path.mkdir()
        elif what == "name":
            path.with_name(data.draw(st.sampled_from(["\udcff", "a\nb", "__9_0.distcp", "x" * 200]))).write_bytes(
                content
            )
