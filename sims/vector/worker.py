"""A worker process: where it begins, and its life."""

from __future__ import annotations

import signal
import traceback
from multiprocessing.connection import Connection

import torch

from fedpeer.sims.vector.resident import given_back
from fedpeer.sims.vector.tasks import Worker
from fedpeer.sims.vector.workspace import Job, WorkspaceHandles


def worker_main(pipe: Connection, job: Job, handles: WorkspaceHandles) -> None:
    """One torch thread, no Ctrl-C; then tasks until the pipe closes (it does when the leading process ends)."""
    torch.set_num_threads(1)
    _keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    workspace = handles.open()
    with given_back(workspace):
        _serve_tasks(pipe, Worker(job, workspace, job.stepper()))


def _keep_freed_memory() -> None:
    """Glibc gives a freed block back to the system if it is larger than all freed before (up to 32 MiB), so that every
    new one costs page faults: a tenth of an evaluation. Freeing one of nearly that size first ends this; elsewhere it
    does nothing."""
    torch.empty(31 * 2**20, dtype=torch.uint8)


def _serve_tasks(pipe: Connection, context: Worker) -> None:
    """Take a task, do it, answer. What a task raises is sent back whole, for the leading process to show."""
    while True:
        try:
            kind, *content = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        if kind == "mixing":
            group, mixing = content
            context.mixing[group] = mixing
            continue
        number, task = content
        try:
            pipe.send(("done", number, context.do(task)))
        except BrokenPipeError:
            return
        except Exception:
            pipe.send(("error", number, traceback.format_exc()))
