"""How a save is held against those beside it."""
