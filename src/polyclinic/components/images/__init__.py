"""Components at the level of images."""
