"""Random stories of a lab: drawn from a seed, performed on a real Slurm, and held to promises that Slurm itself witnesses.

``drawn`` says what happens (the same for the same seed), ``jobs`` submits, ``acts`` performs, ``promises`` looks at the end.
"""
