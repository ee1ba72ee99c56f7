"""What tells the parts of a copy apart that several nodes put together."""
