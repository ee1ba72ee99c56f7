"""What is in the files of a checkpoint: archives, tensors, numbers, JSON. Bounded in time and memory, whatever is there."""
