"""Simulates weeks of large jobs with the live engine deciding: how much GPU time is lost, and to which causes.

What comes in: a scenario (nodes, days, failure rates, a policy), a seed. What goes out: how the time of the jobs was spent.
Time jumps from event to event: nothing is sent while nothing changes, so that weeks take minutes. Nothing outside the
process is touched.

``rates`` says how often which cause strikes, ``causes`` what each does and what machines and programs print of it (``signs``
reads those lines with the real readers), ``assumptions`` every other number with its source. ``cluster`` is Slurm, nodes and
jobs, ``run`` the events, ``engine_runner`` how the live engine answers a failure, ``behaviours`` how others do.
``account`` keeps the time, ``seeds`` repeats a scenario and gives intervals.
"""
