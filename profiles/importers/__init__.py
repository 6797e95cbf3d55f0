"""What other tools print about a cluster, read into a cluster file: one file per format, one line in registry.py."""
