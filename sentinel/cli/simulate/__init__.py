"""``sentinel simulate``: options as scenarios, runs, tables and curves."""
