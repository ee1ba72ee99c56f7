from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from lab import cluster, layout
from lab.layout import LabError
from servers import ports


def test_ports_are_consecutive_and_below_the_ephemeral_range():
    run = layout.free_ports(67)
    assert run == list(range(run[0], run[0] + 67))
    assert run[-1] <= layout.PORT_LAST < 32768


def test_more_ports_than_there_is_room_for_is_refused():
    with pytest.raises(LabError, match="fewer nodes"):
        layout.free_ports(4000)


def test_subnet_avoids_existing_routes():
    header = "Iface\tDestination\tGateway\n"
    # 10.100.0.0 to 10.218.0.0 are taken; the kernel prints addresses in network order as one number.
    taken = "".join(f"br{n}\t{int.from_bytes(bytes([10, n, 0, 0]), 'little'):08X}\t00000000\n" for n in range(100, 219))
    assert layout.free_subnet(header + taken) == 219
    everything = taken + f"x\t{int.from_bytes(bytes([10, 219, 0, 0]), 'little'):08X}\t0\n"
    with pytest.raises(LabError, match="no free network"):
        layout.free_subnet(header + everything)


def test_a_long_folder_is_refused_because_of_the_socket_path():
    with pytest.raises(LabError, match="--dir"):
        layout.new_spec(
            Path("/tmp") / ("x" * 80),
            nodes=1,
            gpus=1,
            partition="gpu",
            isolated=False,
            sentinel=False,
            python="python3",
            mode="act",
        )


def test_saved_and_loaded_again(make_lab):
    lab = make_lab()
    lab.save()
    assert layout.load(lab.dir).spec == lab.spec


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"dir": "/tmp/x"})])
def test_a_lab_that_cannot_be_read_says_how_to_clean_up(tmp_path, content):
    (tmp_path / "lab.json").write_text(content)
    with pytest.raises(LabError, match="lab down"):
        layout.load(tmp_path)


def test_no_lab_names_the_folder_and_the_way_out(tmp_path):
    with pytest.raises(LabError, match="lab up"):
        layout.load(tmp_path / "nowhere")


def test_unknown_node_is_refused(make_lab):
    with pytest.raises(LabError, match="n1 to n3"):
        make_lab().index("n4")


def test_addresses_of_an_isolated_lab_are_distinct(make_lab):
    lab = make_lab(isolated=True, nodes=600, node_ports=list(range(600)))
    addresses = {lab.node_address(name) for name in lab.names} | {lab.controller_address}
    assert len(addresses) == 601
    assert all(0 < int(part) < 255 for address in addresses for part in address.split(".")[3:])


def test_what_an_up_left_that_was_killed_at_once_goes(tmp_path: Path):
    folder = tmp_path / "lab"
    folder.mkdir()
    (folder / ".lab.json.4711.tmp").write_text('{"dir": "')
    cluster.down(folder, keep=False)
    assert list(tmp_path.iterdir()) == []
    folder.mkdir()
    (folder / "thesis.tex").touch()
    with pytest.raises(LabError, match="no lab in"):
        cluster.down(folder, keep=False)
    assert (folder / "thesis.tex").exists()


def test_labs_side_by_side_give_their_jobs_other_numbers():
    """A lab of eight nodes has eleven ports; its first jobs must not have the numbers of the next lab's first jobs."""
    one, other = layout.first_job(layout.PORT_FIRST), layout.first_job(layout.PORT_FIRST + 11)
    assert one == 1 and other - one >= 40
    assert layout.first_job(layout.PORT_LAST) < 16000  # what jobs make their port of, modulo


def test_jobs_of_a_lab_and_tests_beside_it_have_ports_of_their_own():
    """A job whose port another has taken fails at once, as if it were the job's own fault."""
    batch = (layout.ROOT / "deploy" / "lab" / "training" / "train.sbatch").read_text()
    first, count = map(int, re.search(r"MASTER_PORT=\$\(\((\d+) \+ SLURM_JOB_ID % (\d+)\)\)", batch).groups())
    assert 1024 < ports.FIRST < ports.LAST < first < first + count <= layout.PORT_FIRST
    own = ports.free_ports(60)
    assert len({*own}) == 60 and all(ports.FIRST <= port <= ports.LAST for port in own)
    code = "import ports; print(*ports.free_ports(300))"
    environment = {**os.environ, "PYTHONPATH": str(Path(ports.__file__).parent)}
    others = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert not {*own} & {*map(int, others.stdout.split())}, "nothing listens there yet"
