"""How many were right: by fault, by form of dump, by what the answer was grounded on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

ENOUGH = 0.95


class Tally:
    """Counts answers about culprits and kinds."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self.right: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.bases: Counter[str] = Counter()
        self.right_by_basis: Counter[str] = Counter()

    def add(self, names: Iterable[str], basis: str, *, culprits: bool, kind: bool) -> None:
        for name in (*names, "all"):
            self.total[name] += 1
            self.right[name] += culprits
            self.kinds[name] += kind
        self.bases[basis] += 1
        self.right_by_basis[basis] += culprits

    def show(self, names: Iterable[str]) -> None:
        print(f"{'':18}{'cases':>7}{'culprits':>10}{'kind':>8}")
        for name in (*names, "all"):
            if total := self.total[name]:
                print(f"{name:18}{total:7}{self.right[name] / total:10.1%}{self.kinds[name] / total:8.1%}")
        grounds = (f"{name} {self.right_by_basis[name]}/{self.bases[name]}" for name in sorted(self.bases))
        print("right by grounds: " + ", ".join(grounds))

    def enough(self) -> bool:
        return self.right["all"] >= ENOUGH * self.total["all"]
