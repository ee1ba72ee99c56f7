"""``sentinel replay``, ``bundle`` and ``import``: the past from a store, a bundle, accounting, or logs."""
