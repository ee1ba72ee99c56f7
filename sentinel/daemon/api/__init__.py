"""Answers nodes, hooks and people: the HTTP server, views for the command line, operators' commands."""
