"""Shows the audit to operators and copies it to syslog. In: entries in the store. Out: JSON. It never writes an entry."""
