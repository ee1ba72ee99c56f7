"""Job logs and machine logs: prefixes, prefilter, launchers, timers, error files; lines in, evidence out."""
