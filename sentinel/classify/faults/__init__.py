"""What a machine's own words are worth: a fault that passed, the module at fault, and faults of two nodes at once."""
