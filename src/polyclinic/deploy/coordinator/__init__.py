"""The coordinator: SuperLink, accepted sites, the process that serves a run."""
