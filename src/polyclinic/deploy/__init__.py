"""The processes around a real federation: the coordinator, the sites, and their keys."""
