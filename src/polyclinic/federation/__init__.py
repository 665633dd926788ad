"""The server and the sites of a federation: rounds, local training, scoring, state on disk."""
