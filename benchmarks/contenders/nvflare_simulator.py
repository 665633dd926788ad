"""NVFlare's simulator: FedAvg of its own, one client process for each of two threads."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve()


def client(work_file: str) -> None:
    """What every client runs for the whole job: NVFlare's client interface."""
    import nvflare.client as flare
    from common import Work, train
    from nvflare.app_common.abstract.fl_model import FLModel

    work = Work(work_file)
    flare.init()
    number = int(flare.get_site_name().removeprefix("site-")) - 1
    images, labels = work.images(work.sites[number])
    network = work.network()
    while flare.is_running():
        received = flare.receive()
        network.load_state_dict(received.params)
        train(network, images, labels, work.batch_size, 0)
        weights = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
        flare.send(FLModel(params=weights, meta={"NUM_STEPS_CURRENT_ROUND": len(images)}))


def main(work_file: str) -> None:
    from common import Unet16, Work
    from nvflare.app_opt.pt.job_config.fed_avg import FedAvgJob
    from nvflare.job_config.script_runner import ScriptRunner

    work = Work(work_file)
    job = FedAvgJob(Unet16(), n_clients=len(work.sites), num_rounds=work.rounds, name="fedavg")
    for number in range(len(work.sites)):
        job.to(ScriptRunner(script=str(HERE), script_args=f"{work_file} client"), f"site-{number + 1}")
    with tempfile.TemporaryDirectory() as workspace:
        job.simulator_run(workspace, threads=2)


if __name__ == "__main__":
    client(sys.argv[1]) if sys.argv[2:] == ["client"] else main(sys.argv[1])
