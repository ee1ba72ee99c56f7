"""``sentinel checkpoints``: find, validate and move checkpoints. Needs no daemon and no rights but those of the files."""

from __future__ import annotations

import click

from sentinel.cli.checkpoints.find import find, inventory, validate
from sentinel.cli.checkpoints.move import drain, manifest, receive, replicate
from sentinel.cli.checkpoints.set_aside import quarantine


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def checkpoints() -> None:
    """Find the nearest checkpoint that is really valid, check any, move the rest aside.

    \b
    Examples:
      sentinel checkpoints validate /lustre/run7/step-1200 --level checksum
      sentinel checkpoints find --global /lustre/run7 --local /nvme/run7 --json
    """


for _command in (find, validate, inventory, quarantine, manifest, drain, replicate, receive):
    checkpoints.add_command(_command)
