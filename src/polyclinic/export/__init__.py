"""A model to take home: the network of a run with all that it needs, to run without polyclinic."""
