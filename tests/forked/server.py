"""`server.py SOCKET MODULES...`: import these, and fork a Python for each client, until standard input ends.

A client's fork starts the program in a fork of its own and watches it, so that each is killed when its parent is
gone. The program goes on in `_run`, outside of the loop, and ends as any Python does.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import threading
import traceback
import warnings
import weakref
from contextlib import suppress
from typing import Any

from tests.forked.client import NAMESPACES, NUMBER_BYTES, number_bytes, received

_SET_PDEATHSIG = 1  # <sys/prctl.h>


def _serve(path: str, preloaded: list[str]) -> list[str]:
    """Fork for each client; return in each program, with its words."""
    for name in preloaded:
        importlib.import_module(name)
    for each in weakref.finalize._registry:  # type: ignore[attr-defined]
        each.atexit = False  # finalizing the imported modules is a third of the work of a short program
    gc.collect()
    gc.freeze()  # collecting would copy the pages that forks share
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(64)
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([sys.stdin, listening], [], [])
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if sys.stdin in ready:
                shutil.rmtree(os.path.dirname(path))
                os._exit(0)
            line, _ = listening.accept()
            with line:
                if os.fork() == 0:
                    return _watch(line)


def _watch(line: socket.socket) -> list[str]:
    """Start a client's program, send the client its number and how it ends; return in the program."""
    _end_with_parent()
    head, descriptors, _, _ = socket.recv_fds(line, NUMBER_BYTES, 3 + len(NAMESPACES))
    request = json.loads(received(line, int.from_bytes(head, "big")))
    pid = os.fork()
    if pid == 0:
        line.close()
        _end_with_parent()
        _become(request, descriptors)
        return list(request["words"])
    for each in descriptors:
        os.close(each)
    with suppress(ConnectionError):  # the client may have been killed since; that is noticed below
        line.sendall(number_bytes(pid))

    def end_with_client() -> None:
        with suppress(ConnectionError):
            line.recv(1)  # the client sends nothing more
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    threading.Thread(target=end_with_client, daemon=True).start()
    _, status = os.waitpid(pid, 0)
    with suppress(ConnectionError):
        line.sendall(number_bytes(status))
    os._exit(0)


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Take over the client's streams, namespaces, environment and folder, in a session of its own."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        os.dup2(descriptors[number], number)
        setattr(sys, name, os.fdopen(number, mode, 1 if name == "stderr" else -1, closefd=False))
    for kind, space in zip(NAMESPACES, descriptors[3:], strict=True):
        if os.fstat(space).st_ino != os.stat(f"/proc/self/ns/{kind}").st_ino:
            _libc().setns(space, 0)
    for descriptor in descriptors:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])


def _end_with_parent() -> None:
    if sys.platform == "linux":
        _libc().prctl(_SET_PDEATHSIG, signal.SIGKILL)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _run(words: list[str]) -> None:
    """Do what `python WORDS` does, where WORDS may be `-P`, `-W ACTION`, and `-m MODULE`, `-c CODE` or a file."""
    safe = False
    while words[0] in ("-P", "-W"):
        if words[0] == "-P":
            safe, words = True, words[1:]
        else:
            warnings.simplefilter(words[1])  # type: ignore[arg-type]
            words = words[2:]
    what, *rest = words
    sys.path[:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if what in ("-m", "-c"):
        sys.argv = [what, *rest[1:]]
        sys.path[:0] = [] if safe else [os.getcwd() if what == "-m" else ""]
        if what == "-m":
            sys.modules.pop(rest[0], None)
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = words
        sys.path[:0] = [] if safe else [os.path.dirname(os.path.abspath(what))]
        runpy.run_path(what, run_name="__main__")


def _end(code: object) -> None:
    """End as Python does at the end of a program, but do not finalize the imported modules."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else code is not None)


if __name__ == "__main__":
    words = _serve(sys.argv[1], sys.argv[2:])
    try:
        _run(words)
    except SystemExit as error:
        _end(error.code)
    except BaseException:
        traceback.print_exc()
        _end(1)
    _end(0)
