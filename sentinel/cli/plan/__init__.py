"""``sentinel plan``: how often to save, how fast the storage, how many spares."""
