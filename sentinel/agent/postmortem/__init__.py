"""Collects what an ended job left on the node: files that explain a failure, and its local checkpoints."""
