"""Sites side by side in worker processes of this machine: cores or GPUs, tensors in shared memory."""

from polyclinic.engines.workers.engine import Workers

__all__ = ["Workers"]
