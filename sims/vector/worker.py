"""The main function of a worker process."""

from __future__ import annotations

import signal
import traceback
from multiprocessing.connection import Connection

import torch

from fedpeer.sims.vector.by_value import ByValue
from fedpeer.sims.vector.resident import given_back
from fedpeer.sims.vector.tasks import Worker
from fedpeer.sims.vector.workspace import Job, WorkspaceHandles


def worker_main(pipe: Connection, packed: ByValue[Job], handles: WorkspaceHandles) -> None:
    """Run tasks until the pipe closes, which it does when the leading process ends.

    A worker uses one torch thread and ignores Ctrl-C.
    """
    torch.set_num_threads(1)
    _keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    workspace = handles.open()
    with given_back(workspace):
        _serve_tasks(pipe, Worker(packed.value, workspace, packed.value.steppers()))


def _keep_freed_memory() -> None:
    """Make glibc keep freed memory for reuse.

    Glibc returns a freed block to the system if it is larger than all freed before (up to 32 MiB), so every new one
    causes page faults, a tenth of the time of an evaluation. Freeing a block of nearly that size first prevents this;
    with other allocators it has no effect.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


def _serve_tasks(pipe: Connection, context: Worker) -> None:
    """Receive tasks, run them and answer. The traceback of a failed task is sent back, for the user to see."""
    while True:
        try:
            kind, *content = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        if kind == "mixing":
            group, mixing = content
            context.set_mixing(group, mixing)
            continue
        number, task = content
        try:
            pipe.send(("done", number, context.do(task)))
        except BrokenPipeError:
            return
        except Exception:
            pipe.send(("error", number, traceback.format_exc()))
