"""The page for browsers: read-only, made on the server from the same views as the command line, without scripts."""
