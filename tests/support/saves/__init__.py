"""Checkpoints as their frameworks write them, and as they write them byte for byte."""
