"""Components: published methods and their parts, one file each, in a folder by level."""
