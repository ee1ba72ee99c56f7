"""A cluster in memory on virtual time, with the code that runs live: engine, actions, runner, readers, policy and rules.

What comes in: a seed. What goes out: histories of faults, of people's actions and of lost messages that ended in a broken
promise. Nothing outside the process is touched.

``slurm`` is the cluster, ``programs`` what runs on it, ``timeline`` and ``event_loop`` the virtual time, ``store`` what
outlives the daemon, ``daemon`` one run of its process, ``crossings`` what fails on the way to Slurm, store and nodes,
``agents`` and ``heartbeats`` what nodes send; ``world`` brings them together, and ``rest`` ends a history when nothing more
can happen. ``stories`` generates histories of ``faults`` and of what ``people`` do, ``promises`` (with ``observer``) checks
them, ``explore`` runs many and shrinks what fails.
"""
