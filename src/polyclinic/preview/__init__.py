"""What would happen, before anything does: what leaves a site, and what methods cost."""
