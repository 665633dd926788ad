"""Folders in, tensors out."""
