"""Differential privacy: noise that nobody else can draw again, and what it is worth."""
