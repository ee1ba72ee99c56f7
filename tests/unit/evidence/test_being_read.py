"""What a program was reading when an exception came, by the names of its frames."""

import pytest

from sentinel.evidence.logs.being_read import NEAREST, being_read

MAIN = (b"/home/u/run/train.py", b"main", b"    start(args)")


@pytest.mark.parametrize(
    ("file", "function", "source", "what"),
    [
        ("engine.py", "load_checkpoint", "meta = read(f)", "checkpoint"),
        ("engine.py", "_maybe_resume", "step = read(f)", "checkpoint"),
        ("snap.py", "restore_snapshot", "blob = read(fh)", "checkpoint"),
        ("trainer.py", "_load_optimizer_and_scheduler", "state = read(f)", "checkpoint"),
        ("train.py", "main", "    meta = json.load(open(ckpt_dir / 'trainer_state.json'))", "checkpoint"),
        ("ckpt_io.py", "read_header", "n, = unpack(f.read(8))", "checkpoint"),
        ("data.py", "__getitem__", "x = read(self.files[i])", "data"),
        ("io.py", "sample_stream", "recs = read(path)", "data"),
        ("shards.py", "_read_shard", "recs = read(path)", "data"),
        ("opt/site-packages/webdataset/tariterators.py", "expand", "sample = next(members)", "data"),
        ("opt/site-packages/h5py/_hl/files.py", "make_fid", "fid = h5f.open(name)", ""),  # of samples and of weights
        ("config.py", "load_config", "d = read(f)", "settings"),
        ("train.py", "main", "    cfg = yaml.safe_load(f)", "settings"),
        ("engine.py", "save_checkpoint", "f.write(blob)", ""),
        ("train.py", "main", "    table = read(path)", ""),
        ("load.py", "read_confirmed", "x = read(f)", ""),
    ],
)
def test_names_of_functions_files_and_lines_tell(file: str, function: str, source: str, what: str) -> None:
    frame = (f"/home/u/run/{file}".encode(), function.encode(), source.encode())
    assert being_read([frame, MAIN]) == what


def test_the_nearest_caller_that_tells_counts() -> None:
    opened = (b"/home/u/run/io.py", b"parse", b"    return unpack(blob)")
    sample, resume = (b"/home/u/run/data.py", b"__getitem__", b""), (b"/home/u/run/train.py", b"resume", b"")
    assert being_read([opened, sample, resume]) == "data"
    assert being_read([opened, resume, sample]) == "checkpoint"
    assert being_read([opened] * NEAREST + [resume]) == ""
    assert being_read([]) == ""
