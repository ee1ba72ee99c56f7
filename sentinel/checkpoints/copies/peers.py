"""Which host keeps a copy of which other host's shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sentinel.errors import UserError


@dataclass(frozen=True, slots=True)
class Peers:
    """Which host keeps a copy of which other host's shards."""

    of: Mapping[str, str]
    unsafe: tuple[str, ...] = field(default=())  # hosts for which there is none outside their failure domain


def choose_peers(hosts: Sequence[str], domain_of: Mapping[str, str]) -> Peers:
    """Give every host a peer outside its failure domain (a switch, a rack), each peer to one host.

    Hosts are lined up by domain and every one is given the host that stands one largest domain further on: if no domain
    holds more than half of the hosts, all peers are outside. A host without a named domain is a domain of its own.
    """
    if len(set(hosts)) != len(hosts):
        raise UserError("a host is named twice", fix="Name each once.")
    groups: dict[str, list[str]] = {}
    for host in sorted(hosts):
        groups.setdefault(domain_of.get(host, f"host {host}"), []).append(host)
    line = [host for _, group in sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0])) for host in group]
    jump = max((len(group) for group in groups.values()), default=0)
    pairs: dict[str, str] = {}
    unsafe: list[str] = []
    domains = {host: name for name, group in groups.items() for host in group}
    for index, host in enumerate(line):
        peer = line[(index + jump) % len(line)]
        if domains[peer] == domains[host]:
            unsafe.append(host)
        else:
            pairs[host] = peer
    return Peers(pairs, tuple(sorted(unsafe)))
