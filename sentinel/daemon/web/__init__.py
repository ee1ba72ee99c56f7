"""The web page: read-only, rendered on the server from the same views as the command line, without scripts."""
