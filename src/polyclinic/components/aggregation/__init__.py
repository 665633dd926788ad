"""Components at the level of aggregation."""
