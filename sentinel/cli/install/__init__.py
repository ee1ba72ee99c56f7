"""``sentinel install`` and ``uninstall``: what a controller and a node need, shown first, then written."""
