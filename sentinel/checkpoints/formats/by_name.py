"""Formats that are recognised by the names of their files and not checked: the answer is *not known*, with the format."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sentinel.checkpoints.files import NotKnown, Tree
from sentinel.checkpoints.formats.base import Ask, Finding, no_owners


@dataclass(slots=True)
class ByName:
    """One such format; ``pattern`` is found in the name of at least one file."""

    NAME: str
    title: str
    pattern: re.Pattern[str]

    def recognise(self, tree: Tree) -> bool:
        return any(self.pattern.search(name) for name in tree.files)

    def check(self, tree: Tree, ask: Ask) -> Finding:
        del tree, ask
        raise NotKnown(f"format {self.title}: recognised by its file names, not checked")

    def owners_by_name(self, tree: Tree) -> frozenset[int]:
        return no_owners(tree)


_TENSORFLOW = r"\.data-\d{5}-of-\d{5}$|(^|/)saved_model\.pb$|\.ckpt[^/]*\.(index|meta)$|\.(weights\.h5|keras)$"
_PADDLE = r"\.(pdparams|pdopt|pdmodel|pdiparams)$|^\d+_\d+\.distcp$|^\d+\.metadata$"
_EASYLM = r"(^|/)streaming_(params|train_state)(_\d+)?$"
_BYTECHECKPOINT = r"(^|/)global_metadata(\.json)?$|bytecheckpoint"

UNCHECKED: tuple[ByName, ...] = (
    ByName("tensorflow", "TensorFlow", re.compile(_TENSORFLOW)),
    ByName("paddle", "Paddle", re.compile(_PADDLE)),
    ByName("easylm", "EasyLM's stream", re.compile(_EASYLM)),
    ByName("bytecheckpoint", "ByteCheckpoint", re.compile(_BYTECHECKPOINT, re.IGNORECASE)),
)
