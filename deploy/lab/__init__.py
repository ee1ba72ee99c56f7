"""The lab: a real Slurm cluster on one machine, with faked GPUs, a training job, and faults by name."""
