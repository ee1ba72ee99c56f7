"""Finds the few lines of a block that rules may know: by the words that patterns need, each form of line once. Pure."""
