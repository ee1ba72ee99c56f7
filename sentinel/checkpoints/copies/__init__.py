"""Where copies go, and what tells the parts of one apart that several nodes put together."""
