"""Helpers that several components share; no published idea of its own."""
