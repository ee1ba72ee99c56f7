"""What is written when checkpoints are moved aside."""
