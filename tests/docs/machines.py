"""Machines for the tests of a page about machines.

Each machine is a network namespace with its own system folders. The office reaches it by `ssh` and `scp`. It has as
much of systemd as starts a unit's command and stops it by its signal.

Files that a machine writes into `/etc`, `/opt`, `/srv` and `/var/lib` are in a layer over the folders of this machine,
and only that machine sees them. The service's user exists on each machine, but its command runs as root, because that
user may not be allowed to read the Python of these tests.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT
from tests.forked import fedpeer_command
from tests.net.hosts import Hosts, HostsError

#: Folders that a machine may write to without a change on this machine.
OWN = ("etc", "opt", "srv", "var/lib")
PASSWD = "fedpeer:x:990:990::/var/lib/fedpeer:/usr/sbin/nologin\n"
GROUP = "fedpeer:x:990:\n"
READY = "ready"

SYSTEMCTL = """\
import configparser, os, shlex, signal, subprocess, sys, time
from pathlib import Path

words = [word for word in sys.argv[1:] if not word.startswith("--")]
if words == ["daemon-reload"]:
    sys.exit(0)
verb, unit = words
instance = unit.partition("@")[2]
found = configparser.ConfigParser(interpolation=None, strict=False)
found.optionxform = str
found.read("/etc/systemd/system/fedpeer@.service")
service = {key: value.replace("%i", instance) for key, value in found["Service"].items()}
running = Path(f"/var/lib/{instance}.pid")

def there(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

def stop():  # who is not a process's parent can only look whether it is there
    pid = int(running.read_text())
    if not there(pid):
        return
    os.kill(pid, getattr(signal, service["KillSignal"]))
    end = time.monotonic() + float(service["TimeoutStopSec"])
    while there(pid):
        assert time.monotonic() < end, "it would be killed"
        time.sleep(0.05)

if verb in ("stop", "restart"):
    stop()
if verb in ("enable", "start", "restart"):
    name, _, value = service["Environment"].partition("=")
    with open(f"/var/lib/{instance}.journal", "ab") as journal:
        process = subprocess.Popen(
            shlex.split(service["ExecStart"]), cwd=service["WorkingDirectory"], stdin=subprocess.DEVNULL,
            stdout=journal, stderr=journal, start_new_session=True, env={**os.environ, name: value},
        )
    running.write_text(str(process.pid))
"""

SCP = """\
#!/bin/sh
for last; do :; done
host=${last#root@} host=${host%%:*}
for word; do
    case $word in
        -*|"$last") ;;
        *) cp -rp "$word" "$(cat "$machines/$host")/${last#*:}" || exit ;;
    esac
done
"""
#: `ssh [-n] root@HOST WORDS...`: a shell on the host reads the joined words, as with the real ssh.
SSH = """\
#!/bin/sh
[ "$1" = -n ] && shift
host=${1#root@}
shift
[ -e "$machines/$host" ] || { echo "no such machine: $host" >&2; exit 255; }
holder=$(basename "$(dirname "$(cat "$machines/$host")")")
exec nsenter --target "$holder" --mount --net env PATH="$machines/bin:$PATH" sh -c "$*"
"""


class Machines:
    """The named hosts as machines, and the environment of the office, in which commands reach them."""

    def __init__(self, hosts: Hosts, names: list[str], folder: Path) -> None:
        """Start the machines; raise HostsError if this machine does not allow folders to be mounted over its own."""
        self._folder = folder
        commands = folder / "machines" / "bin"
        for name, text in {"runuser": '#!/bin/sh\nshift 3\nexec "$@"\n', "systemctl": _python(SYSTEMCTL)}.items():
            _script(commands / name, text)
        _script(folder / "bin" / "ssh", SSH)
        _script(folder / "bin" / "scp", SCP)
        _script(folder / "bin" / "fedpeer", f'#!/bin/sh\nexec {shlex.join(fedpeer_command())} "$@"\n')
        self.holders = {name: self._holder(hosts, name) for name in names}

    def _holder(self, hosts: Hosts, name: str) -> subprocess.Popen[bytes]:
        """Start the process whose namespaces are the machine; a file named by its address has the path to its root."""
        own = self._folder / "own" / name
        lines = ["set -e"]
        for place in OWN:
            over, work = own / place, own / "work" / place
            over.mkdir(parents=True)
            work.mkdir(parents=True)
            layers = f"lowerdir=/{place},upperdir={over},workdir={work}"
            lines.append(f"mount -t overlay overlay -o {shlex.quote(layers)} /{place}")
        lines += [f"printf '{PASSWD}' >> /etc/passwd", f"printf '{GROUP}' >> /etc/group", "mkdir -p /opt/fedpeer/bin"]
        lines += [f"cp {shlex.quote(str(self._folder / 'bin' / 'fedpeer'))} /opt/fedpeer/bin/", f"echo {READY}"]
        process = hosts.start(
            name, ["sh", "-c", "\n".join([*lines, "exec sleep infinity"])], folder=self._folder,
            out=subprocess.PIPE, err=subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None, "it was asked for"
        if (said := process.stdout.readline().decode().strip()) != READY:
            raise HostsError(said)
        (self._folder / "machines" / hosts.address[name]).write_text(f"/proc/{process.pid}/root")
        return process

    def path(self, name: str, path: str) -> Path:
        """Return the path of a machine's file as seen from this machine."""
        return Path(f"/proc/{self.holders[name].pid}/root{path}")

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "80",
            "PYTHONPATH": str(ROOT),
            "machines": str(self._folder / "machines"),
            "PATH": os.pathsep.join([str(self._folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        }


def _python(code: str) -> str:
    return f"#!{sys.executable} -IS\n{code}"


def _script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
