"""A site: its worker, its connection to the server, and what it lets out."""
