"""The daemon: one active, woken by events, with slow reconciliation beside them. Wires adapters to rooms.

``run`` starts it; ``server`` speaks HTTP with nodes and people; ``live`` remembers what runs where; ``judge`` turns
evidence into incidents and decisions; ``recover`` carries plans out; ``watch`` notices what does not come (heartbeats,
steps); ``views`` and ``changes`` answer the command line.
"""
