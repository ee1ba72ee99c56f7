"""Operators by uid, account and group: who is meant, and which names nobody has."""

from __future__ import annotations

import grp
import os
import pwd

import pytest

from sentinel.daemon.api.accounts import name_of, uids_of


def test_numbers_accounts_and_unknown_names() -> None:
    me = pwd.getpwuid(os.getuid())
    assert uids_of([4711, me.pw_name]) == ({4711, me.pw_uid}, [])
    assert uids_of(["no-such-account", "%no-such-group", 7]) == ({7}, ["no-such-account", "%no-such-group"])
    assert name_of(me.pw_uid) == me.pw_name and name_of(2**31 - 7) == f"uid {2**31 - 7}"


def test_group_is_those_it_lists_and_those_whose_own_group_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {"ada": (50001, 600), "bob": (50002, 601), "eve": (50003, 602)}

    def account(name: str) -> pwd.struct_passwd:
        if name not in ids:
            raise KeyError(name)
        uid, gid = ids[name]
        return pwd.struct_passwd((name, "x", uid, gid, "", "/", "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwnam", account)
    monkeypatch.setattr(pwd, "getpwall", lambda: [account(name) for name in ids])
    monkeypatch.setattr(grp, "getgrnam", lambda name: grp.struct_group((name, "x", 601, ["ada", "removed"])))
    assert uids_of(["%ops"]) == ({50001, 50002}, [])
