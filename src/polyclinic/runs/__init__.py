"""Runs: from a recipe to a run folder; grids and studies of runs, and what is read from their folders."""
