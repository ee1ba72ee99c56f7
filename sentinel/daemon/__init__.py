"""Runs the engine live: one daemon is active, others stand by.

``ingest`` turns input into events, ``runner`` hands them to the engine and saves its changes, ``effects`` performs the
engine's effects, ``api`` answers nodes and people. ``wiring`` connects these parts, ``run`` starts and stops them. All
decisions are made by the engine and the stages.
"""
