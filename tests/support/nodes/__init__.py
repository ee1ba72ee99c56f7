"""One node: the agent as a process, a daemon that only keeps what it gets, DCGM recorded and installed; hostile lines."""
