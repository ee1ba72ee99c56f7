"""The host of one node: kernel log, journal, followed files, /sys and /proc, disks. Nothing is judged."""
