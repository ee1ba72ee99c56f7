"""Which GPUs of a node can be read at all: a source that is blind proves neither a fault nor that all is well. Pure."""

from __future__ import annotations

from sentinel.evidence.gpu_samples import ALWAYS_THERE, DISABLED, FAKE, LOST, OK, UNSUPPORTED, Gpu, Sample

BLANK_SAMPLES = 3  # in a row, before "blank" is believed of what could be read before
_NOT_EXPECTED = (LOST, UNSUPPORTED, FAKE, DISABLED)  # nothing is to be read of these


class Sight:
    """Looks at full samples, one after the other.

    Args:
        promised: GPUs that Slurm's gres promises; None when that is not known.

    Attributes:
        trouble: why no GPU can be read; empty where one can be, or where none is there.
        unread: GPUs that cannot be read, in words.
        all_blank: DCGM says of every field of every GPU that it has no value; None where that is not known.
        silent: nothing is said of any GPU, not even that it has no value; None likewise.
    """

    def __init__(self, promised: int | None) -> None:
        self.trouble = "no GPU was read yet"
        self.unread: tuple[str, ...] = ()
        self.all_blank: bool | None = None
        self.silent: bool | None = False
        self._blank: dict[str, int] = {}  # by GPU, samples in a row without a value
        self._all_blank = self._silent = 0  # samples in a row
        self._promised = promised
        self._read: set[str] = set()

    def forget(self) -> None:
        """Take what is read next as the first: what was read before is too old."""
        self._read.clear()

    def look(self, sample: Sample) -> None:
        before, self._blank = self._blank, {}
        readable, unread = 0, []
        for gpu in sample.gpus:
            if any(gpu.fields.get(number) is not None for number in ALWAYS_THERE):
                self._read.add(gpu.key)
                readable += 1
            elif gpu.status not in _NOT_EXPECTED:
                count = self._blank[gpu.key] = before.get(gpu.key, 0) + 1
                if count >= BLANK_SAMPLES or gpu.key not in self._read:  # at once where it never could be
                    unread.append(f"GPU {gpu.index} ({gpu.uuid or gpu.pci or 'not named'})")
                else:
                    readable += 1
        self.unread = tuple(unread)
        name = "DCGM" if sample.via in ("dcgm", "dcgmi") else "the driver"
        if not sample.gpus:
            self.trouble = "" if self._promised == 0 else f"{name} lists no GPU"
        else:
            lost = all(gpu.status == LOST for gpu in sample.gpus)
            self.trouble = "" if readable or lost else f"{name} can read no GPU"
        self._judge_all(sample)

    def _judge_all(self, sample: Sample) -> None:
        # Blank is to be expected of those that DCGM cannot use (lost, driver detached); an absent field was not read.
        usable = [gpu for gpu in sample.gpus if gpu.status in (None, 0, OK)]
        said = [gpu.fields[number] for gpu in usable for number in ALWAYS_THERE if number in gpu.fields]
        self._all_blank = self._all_blank + 1 if said and all(value is None for value in said) else 0
        self.all_blank = _believed(self._all_blank) if said else None
        mute = self.trouble and not said and all(gpu.status in (0, *_NOT_EXPECTED) for gpu in sample.gpus)
        self._silent = self._silent + 1 if mute else 0
        self.silent = _believed(self._silent)

    def is_mute(self, gpu: Gpu) -> bool | None:
        """Whether nothing can be read of this GPU, while others can be; None where it is not to be expected or not known."""
        if self.trouble or gpu.status not in (None, 0, OK):
            return None
        return _believed(self._blank.get(gpu.key, 0))


def _believed(samples: int) -> bool | None:
    """Whether so many in a row show something; None where they are too few to tell, as after a start."""
    return samples >= BLANK_SAMPLES if samples == 0 or samples >= BLANK_SAMPLES else None
