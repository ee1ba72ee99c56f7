"""How often to save, how fast the storage, how many spares: arithmetic with its sources.

What comes in: plain floats in SI units (seconds, bytes, bytes per second, fractions of one), or a ``FleetHistory``.
What goes out: floats and frozen records whose field names carry the unit. Nothing here reads a file or a clock,
uses randomness or knows Slurm; only the standard library is imported, so that other programs can use it.

Every formula names its source where it is computed. The tests hold each closed form to a simulation of the process
it describes. What has no answer raises ``PlanningError`` (a quantity that makes no sense) or ``OutOfRange`` (a formula
asked outside the range in which it is true); what has an answer with a catch returns it with a warning.
"""
