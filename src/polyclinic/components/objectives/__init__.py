"""Components at the level of objectives."""
