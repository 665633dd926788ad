"""Server, site, messages, checks, checkpoints."""
