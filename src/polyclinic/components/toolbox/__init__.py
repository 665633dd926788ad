"""Helpers that components share; none of them is a component."""
