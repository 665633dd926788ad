"""The Flower engine: the same server and sites, on machines that see each other over a network only."""
