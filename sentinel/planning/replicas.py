"""How many copies of each shard, and where: the chance that k simultaneous losses leave one of each.

``nodes`` nodes each own one shard, of which ``copies`` nodes (the owner among them) hold a copy; k of the nodes are
lost at once, every set of k as likely as any other. All counts are exact whole numbers until the last division.

Placements:
- group: disjoint groups of ``copies`` neighbours keep each other's shards (Z. Wang et al., "GEMINI", SOSP 2023, where
  it is shown to be the best one if ``copies`` divides ``nodes``). Else the last group takes the rest: each of its nodes
  copies to the next ones in line, the last ones among themselves. GEMINI's mixed placement makes that last group a ring:
  a few more sets are fatal, and the nodes are loaded more evenly.
- ring: each node's shard also lies on the next ``copies`` - 1 nodes.
- random: each shard on ``copies`` - 1 other nodes drawn at random, independently for every owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb, exp, lgamma, log

from sentinel.planning.limits import PlanningError, fraction, positive, whole

PLACEMENTS = ("group", "ring", "random")
MOST_NODES = 200_000
MOST_LOSSES = 500
NEGLIGIBLE = 1e-15


def survival(nodes: int, copies: int, losses: int, placement: str = "group") -> float:
    """P(every shard has a copy left | ``losses`` of ``nodes`` lost)."""
    whole(nodes, "nodes", most=MOST_NODES)
    whole(copies, "copies", most=min(nodes, 64))
    whole(losses, "losses", least=0, most=min(nodes, MOST_LOSSES))
    if losses < copies:
        return 1.0
    if losses == nodes:
        return 0.0
    if placement == "group":
        return _group_count(nodes, copies, losses) / comb(nodes, losses)
    if placement == "ring":
        return _circle_count(nodes, copies, losses) / comb(nodes, losses)
    if placement == "random":
        return (1 - comb(losses - 1, copies - 1) / comb(nodes - 1, copies - 1)) ** losses
    raise PlanningError(f"unknown placement {placement!r}", fix=f"One of {', '.join(PLACEMENTS)}.")


@lru_cache(maxsize=64)
def _power(polynomial: tuple[int, ...], exponent: int, upto: int) -> tuple[int, ...]:
    """Coefficients x^0 .. x^upto of polynomial^exponent, whose constant term is 1; exact.

    From Q = P^e follows P Q' = e P' Q, so k q(k) = sum over i >= 1 of (e i - (k - i)) p(i) q(k - i) (Euler; Knuth, The Art
    of Computer Programming, volume 2, 4.7).
    """
    found = [1]
    for k in range(1, upto + 1):
        total = 0
        for i in range(1, min(k, len(polynomial) - 1) + 1):
            total += (exponent * i - (k - i)) * polynomial[i] * found[k - i]
        found.append(total // k)
    return tuple(found)


def _group_count(nodes: int, copies: int, losses: int) -> int:
    """Sets of ``losses`` nodes that contain no whole group: each group may lose anything but all, so the coefficient of
    x^losses in ((1 + x)^copies - x^copies)^groups.

    Where ``copies`` does not divide ``nodes`` the last group has copies + rest nodes in line.
    """
    polynomial = tuple(comb(copies, i) for i in range(copies))
    rest = nodes % copies
    if rest == 0:
        return _power(polynomial, nodes // copies, losses)[losses]
    last = copies + rest
    others = _power(polynomial, nodes // copies - 1, losses)
    return sum(_line_count(last, copies, inside) * others[losses - inside] for inside in range(min(last, losses) + 1))


def _runs(slots: int, copies: int, losses: int) -> int:
    """Ways to put ``losses`` into ``slots`` runs of fewer than ``copies`` each: the coefficient of x^losses in
    (1 + x + ... + x^(copies-1))^slots."""
    return _power((1,) * copies, slots, losses)[losses]


def _line_count(nodes: int, copies: int, losses: int) -> int:
    """Sets of ``losses`` places in a line without ``copies`` neighbouring ones: runs before, between and after the
    survivors."""
    return _runs(nodes - losses + 1, copies, losses)


def _circle_count(nodes: int, copies: int, losses: int) -> int:
    """Sets of ``losses`` places on a circle without ``copies`` neighbouring ones.

    By the cycle lemma: the z = nodes - losses survivors each are followed by a run of fewer than ``copies`` losses, so
    there are nodes/z times the ways to fill z runs.
    """
    survivors = nodes - losses
    if survivors == 0:
        return 0
    return nodes * _runs(survivors, copies, losses) // survivors


def domain_survival(domains: int, copies: int, losses: int, *, across: bool) -> float:
    """The same where whole domains (racks, switches) are lost at once. Copies ``across`` domains (a stride of one
    domain's nodes or more) make domains the unit; copies inside one domain die with it."""
    if not across:
        return 1.0 if whole(losses, "losses", least=0) == 0 else 0.0
    return survival(domains, copies, losses, "group")


def on_disk_survival(nodes: int, copies: int, losses: int, placement: str, returns_fraction: float) -> float:
    """Copies on the peers' disks: a lost node that comes back (a reboot, not a broken board) brings its copies with
    it, each with this chance, independently. In memory nothing comes back: ``returns_fraction`` 0."""
    back = fraction(returns_fraction, "share that returns", zero=True)
    whole(losses, "losses", least=0, most=min(nodes, MOST_LOSSES))
    if back in (0.0, 1.0):
        return survival(nodes, copies, losses if back == 0 else 0, placement)
    total = 0.0
    for gone in range(losses + 1):
        ways = lgamma(losses + 1) - lgamma(gone + 1) - lgamma(losses - gone + 1)
        weight = exp(ways + gone * log(1 - back) + (losses - gone) * log(back))
        if weight > NEGLIGIBLE:
            total += weight * survival(nodes, copies, gone, placement)
    return total


@dataclass(frozen=True)
class CopyCost:
    """What the copies cost each node: memory (of each the last complete one and the one being filled) and what it sends at
    every save."""

    held_bytes_per_node: float
    sent_bytes_per_save: float


def copy_cost(checkpoint_size_bytes: float, nodes: int, copies: int) -> CopyCost:
    """Memory and traffic of ``copies`` copies of every node's shard."""
    shard = positive(checkpoint_size_bytes, "checkpoint") / whole(nodes, "nodes")
    whole(copies, "copies", most=nodes)
    return CopyCost(2 * shard * copies, shard * (copies - 1))
