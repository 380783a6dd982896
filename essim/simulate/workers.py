"""Who makes the parts of a sweep: this process, several on this machine, or a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from essim.errors import AbsentError, EssimError, InputError


class InParts(Protocol):
    """What is made in parts, each by itself."""

    def content(self, part: int) -> bytes:
        """Return a part."""


Work = Callable[[InParts, list[int]], Iterable[tuple[int, bytes]]]

# How often a pool that lost a process is started anew.
_POOLS = 5


def workers(jobs: int, cluster: str | None) -> Work:
    """Return who makes parts: `jobs` processes here, or the workers of a dask scheduler."""
    if cluster is not None:
        return lambda made, parts: _on_cluster(cluster, made, parts)
    return _here if jobs == 1 else lambda made, parts: _in_processes(jobs, made, parts)


def _here(made: InParts, parts: list[int]) -> Iterator[tuple[int, bytes]]:
    for part in parts:
        yield part, made.content(part)


def _in_processes(jobs: int, made: InParts, parts: list[int]) -> Iterator[tuple[int, bytes]]:
    """Yield parts as they are ready; those of a process that is lost are made again."""
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import BrokenProcessPool

    missing = list(parts)
    for _ in range(_POOLS):
        pool = Parallel(n_jobs=jobs, return_as="generator_unordered", pre_dispatch="2*n_jobs")
        try:
            for part, content in pool(delayed(_one)(made, part) for part in list(missing)):
                missing.remove(part)
                yield part, content
            return
        except BrokenProcessPool:
            continue
    raise EssimError("processes of --jobs were lost again and again", "Is there enough memory?")


def _one(made: InParts, part: int) -> tuple[int, bytes]:
    return part, made.content(part)


def _on_cluster(address: str, made: InParts, parts: list[int]) -> Iterator[tuple[int, bytes]]:
    """Yield parts as they are ready; the scheduler gives those of a lost worker to another."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise AbsentError(
            "--cluster needs distributed", 'pip install "essim[distributed]"'
        ) from None
    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        message = f"no scheduler answers at {address}"
        raise InputError(message, "Start one with: dask scheduler", key="--cluster") from error
    with client:
        shared = client.scatter(made, broadcast=True)
        waiting = client.map(_one, [shared] * len(parts), parts, pure=False)
        for done in as_completed(waiting):
            yield done.result()
            done.release()
