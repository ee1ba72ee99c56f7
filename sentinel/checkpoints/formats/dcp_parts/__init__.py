"""The parts of a distributed checkpoint: metadata, pieces, and how they are stored."""
