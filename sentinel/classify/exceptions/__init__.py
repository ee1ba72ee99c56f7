"""Reads what an exception says: its class, its traceback, what was being read, and what the program said of it."""
