"""``sentinel checkpoints``: find, validate, choose, move aside, copy."""
