"""Output of other tools about a cluster, read into a cluster file: one file per format, one line in registry.py."""
