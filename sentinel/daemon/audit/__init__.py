"""Shows the audit log to operators and copies it to syslog. It reads entries from the store and never writes one."""
