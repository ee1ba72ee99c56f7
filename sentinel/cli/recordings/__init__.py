"""``sentinel replay``, ``bundle`` and ``import``: recordings of past failures, from a store, bundle, accounting or logs."""
