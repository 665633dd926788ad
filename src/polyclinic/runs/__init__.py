"""Runs: the folder that one execution of a recipe leaves behind."""
