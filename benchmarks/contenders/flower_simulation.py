"""Flower's simulation (Ray): one client a core, weights as one array record, FedAvg of Flower."""

from __future__ import annotations

import os

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}

from common import Work, train, work_file
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

WORK = work_file()
client, server = ClientApp(), ServerApp()


@client.train()
def train_site(message: Message, context: Context) -> Message:
    work = Work(WORK)
    site = work.sites[int(context.node_config["partition-id"])]
    images, labels = work.images(site)
    network = work.network()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(network, images, labels, work.batch_size, 0)
    content = {"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord({"num-examples": len(images)})}
    return Message(content=RecordDict(content), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
    work = Work(WORK)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=len(work.sites), min_available_nodes=len(work.sites))
    strategy.start(grid=grid, initial_arrays=ArrayRecord(work.network().state_dict()), num_rounds=work.rounds)


if __name__ == "__main__":
    cores = int(os.environ.get("CORES", "2"))
    run_simulation(
        server, client, num_supernodes=len(Work(WORK).sites),
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": cores}},
    )  # fmt: skip
