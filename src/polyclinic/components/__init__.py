"""The published ideas, one file each."""
