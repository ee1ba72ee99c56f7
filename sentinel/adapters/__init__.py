"""Everything outside of Sentinel, one folder or file for each: Slurm, the store, GPUs, the host, receivers of notices,
MUNGE, Prometheus. Records in and out; foreign errors become ours here. An outside library is imported in its adapter
and nowhere else.
"""
