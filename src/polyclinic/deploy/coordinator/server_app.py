"""The Flower ServerApp: polyclinic's own server, whose engine is Flower's grid."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve one run, which the run's configuration describes."""
    from polyclinic.deploy.coordinator.server_process import serve

    serve(grid, context.run_config)
