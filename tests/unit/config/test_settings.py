"""A bad settings file is told with file, line, key and the fix; every setting says why it is as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sentinel.agent.settings import AgentSettings
from sentinel.config.settings import Mode, Settings, described, load
from sentinel.errors import FileError


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "sentinel.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused(folder: Path, text: str | bytes) -> FileError:
    path = write(folder, text)
    with pytest.raises(FileError) as caught:
        load(path, Settings)
    assert caught.value.path == path and caught.value.fix
    assert str(path) in str(caught.value)
    return caught.value


def test_empty_file_is_all_defaults(tmp_path: Path) -> None:
    assert load(write(tmp_path, ""), Settings) == Settings()
    assert Settings().modes.default == Mode("observe", "observe")  # installed, it observes


def test_values_arrive(tmp_path: Path) -> None:
    made = load(
        write(
            tmp_path,
            """
cluster = "c"
slurm.deadline_s = 3
[limits]
drain_count = 2
[daemon]
operators = [1001, 1002]
[modes.default]
drain = "act"
[modes.partitions.gpu]
restart = "act"
[alerts]
webhooks = ["http://a", "http://b"]
""",
        ),
        Settings,
    )
    assert (made.cluster, made.slurm.deadline_s, made.limits.drain_count) == ("c", 3.0, 2)
    assert isinstance(made.slurm.deadline_s, float)
    assert made.daemon.operators == [1001, 1002] and made.alerts.webhooks == ["http://a", "http://b"]
    assert made.modes.default == Mode("act", "observe") and made.modes.partitions == {"gpu": Mode("observe", "act")}


@pytest.mark.parametrize(
    ("text", "line", "key", "words", "fix"),
    [
        ("[limits]\n\ndrain_cuont = 1\n", 3, "limits.drain_cuont", "unknown key", "did you mean 'drain_count'?"),
        ("[limits]\nzebra = 1\n", 2, "limits.zebra", "unknown key", "known here: drain_count"),
        ("\n[limitz]\na = 1\n", 2, "limitz", "unknown key", "did you mean 'limits'?"),
        ("limits.drain_cuont = 1\n", 1, "limits.drain_cuont", "unknown key", "drain_count"),
        ('[limits]\ndrain_count = "8"\n', 2, "limits.drain_count", "must be int", "without quotes"),
        ("[limits]\ndrain_count = 8.0\n", 2, "limits.drain_count", "must be int", "correct"),
        ("[limits]\ndrain_count = true\n", 2, "limits.drain_count", "must be int", "correct"),
        ("[recovery]\nopt_in = 1\n", 2, "recovery.opt_in", "must be bool", "correct"),
        ("cluster = 3\n", 1, "cluster", "must be str", "correct"),
        ('[slurm]\ndeadline_s = "1"\n', 2, "slurm.deadline_s", "has no unit", "1s, 1min or 1h"),
        ("[limits]\ndrain_count = -1\n", 2, "limits.drain_count", "-1 is below 0 nodes", "at least 0"),
        ("[judgement]\nact_confidence = 1.5\n", 2, "judgement.act_confidence", "above 1.0", "at most 1.0"),
        ("[judgement]\nact_confidence = nan\n", 2, "judgement.act_confidence", "nan", "at least"),
        ("[slurm]\ndeadline_s = inf\n", 2, "slurm.deadline_s", "inf", "write a number"),
        (f"[slurm]\ndeadline_s = {10**400}\n", 2, "slurm.deadline_s", "must be float", "correct"),
        ("limits = {drain_count = -1}\n", 1, "limits.drain_count", "below", "at least 0"),
        ('[daemon]\nstate = "/x"\n[slurm]\nreconcile_s = 0\n', 4, "slurm.reconcile_s", "below", "at least"),
        ("limits = 3\n", 1, "limits", "is a section", "[limits]"),
        ("[daemon]\noperators = 3\n", 2, "daemon.operators", "is a list", "operators = [...]"),
        ("[daemon]\noperators = [1, 1.5]\n", 2, "daemon.operators", "must be int", "correct"),
        ('[modes.default]\ndrain = "yes"\n', 2, "modes.default.drain", "'yes'", '"suggest" or "act"'),
        ('[modes.partitions."a b"]\ndrain = "on"\n', 2, "modes.partitions.a b.drain", "'on'", '"act"'),
        ("[modes]\npartitions = 1\n", 2, "modes.partitions", "is a table", "[modes.partitions.NAME]"),
        ("[modes.partitions]\ngpu = 1\n", 2, "modes.partitions.gpu", "is a section", "[modes.partitions.gpu]"),
        ('[recovery]\ncheckpoint_level = "sha"\n', 2, "recovery.checkpoint_level", "'sha'", '"structural"'),
    ],
)
def test_refused_with_line_key_and_fix(tmp_path: Path, text: str, line: int, key: str, words: str, fix: str) -> None:
    error = refused(tmp_path, text)
    assert (error.line, error.key) == (line, key)
    assert words in error.message and fix in error.fix
    assert f":{line}: {key}: " in str(error)


def test_same_key_of_an_earlier_section_is_not_meant(tmp_path: Path) -> None:
    error = refused(tmp_path, "[alerts]\ndeadline_s = 5\n\n[slurm]\n# deadline_s = 1\ndeadline_s = 0\n")
    assert error.line == 6


def test_not_toml(tmp_path: Path) -> None:
    error = refused(tmp_path, "[limits]\ndrain_count == 3\n")
    assert error.line == 2 and "not TOML" in error.message


@pytest.mark.parametrize(
    "text",
    [".".join(["a"] * 65) + " = 1", "[" + ".".join(['"b c"'] * 65) + "]", "x = {" + " . ".join(["a"] * 65) + " = 1}"],
    ids=["key", "header", "inline"],
)
def test_a_key_of_very_many_parts_is_refused(tmp_path: Path, text: str) -> None:
    error = refused(tmp_path, f"# first\n{text}\n")
    assert error.line == 2 and "more than 64 parts" in error.message


def test_no_more_faults_are_looked_for_than_anybody_reads(tmp_path: Path) -> None:
    error = refused(tmp_path, "".join(f"k{number} = 1\n" for number in range(500)))
    assert len(error.others) == 19


def test_not_utf8(tmp_path: Path) -> None:
    assert "not UTF-8 at byte 11" in refused(tmp_path, b'cluster = "\xff"\n').message


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        load(tmp_path / "none.toml", Settings)
    assert "cannot be read: No such file" in caught.value.message and "settings file" in caught.value.fix


@pytest.mark.parametrize("kind", [Settings, AgentSettings])
def test_every_setting_has_a_reason(kind: type[object]) -> None:
    rows = described(kind)
    assert len(rows) > 10 and not [key for key, _, _, reason in rows if len(reason) < 8 or reason[-1] == "."]


def test_every_time_has_its_unit() -> None:
    for key, _, unit, _ in described(Settings):
        if key.endswith("_s") and not key.endswith("per_s"):
            assert unit == "s", key
        if key.endswith("_bytes"):
            assert unit == "bytes", key


@pytest.mark.parametrize("kind", [Settings, AgentSettings])
def test_defaults_keep_their_own_bounds(kind: type[object], tmp_path: Path) -> None:
    """What ``described`` prints can be written into a file and read back."""
    lines = [f"{key} = {json.dumps(default)}" for key, default, *_ in described(kind) if default is not None]
    assert load(write(tmp_path, "\n".join(lines)), kind) == kind()


@pytest.mark.parametrize(
    ("text", "section", "name", "value"),
    [
        ('[recovery]\nconfirm_s = "10min"', "recovery", "confirm_s", 600.0),
        ('[recovery]\nconfirm_s = "1h30min"', "recovery", "confirm_s", 5400.0),
        ('[recovery]\nrestore_bytes_per_s = "2GB/s"', "recovery", "restore_bytes_per_s", 2e9),
        ('[daemon]\nretention_days = "52w"', "daemon", "retention_days", 364.0),
        ('[daemon]\nstore_bytes = "8GiB"', "daemon", "store_bytes", 8 << 30),
        ('[diagnostics]\ndeadline_s = ["2min", 90, "2.5h"]', "diagnostics", "deadline_s", [120.0, 90.0, 9000.0]),
    ],
)  # fmt: skip
def test_quantities_with_their_units(tmp_path: Path, text: str, section: str, name: str, value: object) -> None:
    made = getattr(getattr(load(write(tmp_path, text), Settings), section), name)
    assert made == value and type(made) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[recovery]\nconfirm_s = "10"', "has no unit"),
        ('[recovery]\nconfirm_s = "10 parsecs"', "unknown unit"),
        ('[recovery]\nconfirm_s = "0.1s"', "is below 1"),
        ('[daemon]\nstore_bytes = "10min"', "unknown unit of bytes"),
        ('[limits]\ndrain_count = "8"', "must be int"),
        ('[limits]\ndrain_fraction = "10%"', "must be float"),
        ('[daemon]\nstore_bytes = "4097.5 B"', "no whole number of bytes"),
    ],
)
def test_quantities_that_cannot_be_read(tmp_path: Path, text: str, words: str) -> None:
    error = refused(tmp_path, text)
    assert words in error.message and error.line == 2


def test_operators_by_uid_account_and_group(tmp_path: Path) -> None:
    made = load(write(tmp_path, '[daemon]\noperators = [1001, "ada", "%hpc-ops"]'), Settings)
    assert made.daemon.operators == [1001, "ada", "%hpc-ops"]
    assert "must be" in refused(tmp_path, "[daemon]\noperators = [1.5]").message
