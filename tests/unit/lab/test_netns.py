from __future__ import annotations

import pytest
from lab import netns
from lab.layout import LabError

ROOT = "22 1 254:0 / / rw,relatime {}- ext4 /dev/vda rw\n"
OTHER = "23 22 0:5 / /dev rw,relatime {}- devtmpfs devtmpfs rw\n"


def test_mounts_of_the_host_reach_the_nodes_and_never_the_reverse():
    assert netns.propagation(ROOT.format("shared:1 ") + OTHER.format("shared:2 ")) == "slave"
    assert netns.propagation(ROOT.format("") + OTHER.format("")) == "slave"


def test_in_a_chroot_only_private_mounts_are_safe(tmp_path, monkeypatch):
    assert netns.propagation(OTHER.format("")) == "unchanged"
    monkeypatch.setattr(netns.os, "geteuid", lambda: 0)
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(netns, "Path", lambda path: table)
    for tag, refused in (("", False), ("shared:2 ", True)):
        table.write_text(OTHER.format(tag))
        if refused:
            with pytest.raises(LabError, match="private"):
                netns.check()
        else:
            netns.check()
    table.write_text(ROOT.format("shared:1 ") + OTHER.format("shared:2 "))
    netns.check()


def test_interface_names_fit_the_kernel(make_lab):
    lab = make_lab(cluster="labffffff", nodes=1024, node_ports=list(range(1024)), isolated=True)
    names = [netns.host_end(lab, name) for name in lab.names] + [netns.bridge(lab)]
    assert all(len(name) <= 15 for name in names)
    assert len(set(names)) == 1025
