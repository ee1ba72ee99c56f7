"""The five faults of `bash deploy/demo`, and the table that shows them."""
