"""The environment of a worker's program, and how many threads it should use.  Pure: mappings in, mappings out.

What the user set stays, but for the variables by which an outer launcher (MPI, Slurm) numbers *our* step: a trainer
that saw them would take part in a world that is not its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..shm_protocol.info import VARIABLES, Info, environment
from . import words
from .plan import RunPlan

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_FOREIGN_PREFIXES = ("PMI_", "PMIX_", "OMPI_COMM_")
_FOREIGN = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_LOCALID", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
MODEL = "PLUGML_MODEL"  # directory of the tables that an evaluation looks at


def threads_each(cpus: float, local_workers: int) -> int:
    """Threads for each worker so that all of them together use the allowed CPUs; at least one.

    >>> [threads_each(2, n) for n in (1, 2, 3)], threads_each(0.5, 1)
    ([2, 1, 1], 1)
    """
    return max(1, int(cpus // local_workers))


def thread_variables(base: Mapping[str, str], threads: int) -> dict[str, str]:
    """Variables to set.  OMP_NUM_THREADS set by the user speaks for the other two as well: libraries fall back on it."""
    if base.get(THREADS[0]):
        return {}
    return {name: str(threads) for name in THREADS if not base.get(name)}


def thread_note(base: Mapping[str, str], cpus: float, local_workers: int) -> str:
    """What is said once at the start, "" where the user decides."""
    added = thread_variables(base, threads_each(cpus, local_workers))
    if not added:
        return ""
    names = ", ".join(name.removesuffix("_NUM_THREADS") for name in added)
    here = f"{cpus:g} CPU{'s' * (cpus != 1)} for {words.count(local_workers, 'worker')}"
    return f"{here}: {names}_NUM_THREADS={threads_each(cpus, local_workers)} (set them yourself to change it)"


def worker_environment(
    base: Mapping[str, str], plan: RunPlan, info: Info, directory: str, cpus: float, master_port: int, version: str
) -> dict[str, str]:
    """Everything that the program of `info.worker` sees."""
    result = _inherited(base, plan, cpus)
    if plan.torch:
        result.update(torch_variables(info.worker, info.workers, master_port))
    result.update(plan.variables)
    result.update(
        environment(
            info, directory, local_worker=info.worker - plan.first, local_workers=plan.workers, out=plan.out(info.worker), plugml_version=version
        )
    )
    return result


def _inherited(base: Mapping[str, str], plan: RunPlan, cpus: float) -> dict[str, str]:
    """What a program may see of our own environment: no channel of somebody else's, no number in an outer world."""
    result = {
        name: value
        for name, value in base.items()
        if name not in VARIABLES and name not in _FOREIGN and name != MODEL and not name.startswith(_FOREIGN_PREFIXES)
    }
    result.update(thread_variables(base, threads_each(cpus, plan.workers)))
    result.setdefault("PYTHONUNBUFFERED", "1")
    return result


def evaluation_environment(base: Mapping[str, str], plan: RunPlan, model: str, clock: int, cpus: float) -> dict[str, str]:
    """What an evaluation's command sees: it has no channel, so that a program with a client in it runs alone."""
    return {
        **_inherited(base, plan, cpus), **dict(plan.variables),
        MODEL: model, "PLUGML_JOB": plan.spec.name, "PLUGML_CLOCK": str(clock),
    }  # fmt: skip


def torch_variables(worker: int, workers: int, port: int) -> dict[str, str]:
    """Only on demand: a torch that finds these forms a group by itself and waits for it."""
    return {
        "RANK": str(worker), "LOCAL_RANK": str(worker), "WORLD_SIZE": str(workers), "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
