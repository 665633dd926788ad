"""Components at the level of features."""
