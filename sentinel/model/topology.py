"""Where a node is, as Slurm says it: ``topology:switch``, or the switches from the top one down."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=16_384)  # asked for each node of each snapshot
def leaf_of(topology: str) -> str:
    """The switch (or block) that a node hangs on; of several topologies that of the first. Empty: not known."""
    return re.split(r"[:.]", topology.partition(",")[0])[-1]
