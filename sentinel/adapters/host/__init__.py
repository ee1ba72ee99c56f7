"""The host of one node: kernel log, journal, followed files, /sys and /proc, disks. Reads only; decides nothing."""
