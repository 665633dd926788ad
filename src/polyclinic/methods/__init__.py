"""Named lists of components."""
