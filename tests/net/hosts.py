"""Hosts for tests: network namespaces of this machine on a switch of their own, and the faults of their links.

    ann 10.77.0.1 --+
    bob 10.77.0.2 --+-- bridge, in a namespace of its own
    cyd 10.77.0.3 --+

The bridge may be a `Relay`, with which packets arrive late, out of order, or twice. Hosts may be behind a router each,
which masquerades what they send and forwards nothing to them: then the address above is the router's. Nothing here
touches the machine's own network: every interface, rule and address is in a namespace of this run, and disappears with
it. Packets are dropped where they come in, by nftables. The module needs root.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from tests.net.relay import READY, Relay

NETWORK = "10.77.0"
#: Inside each router: its own address and its host's.
INSIDE = ("192.168.77.1", "192.168.77.2")
#: Connections that began inside may go on; packets of one that the router forgot, or did not see begin, are dropped.
ROUTER = """
table ip nat {
    chain out {
        type nat hook postrouting priority 100;
        oifname "eth0" masquerade random
    }
}
table ip gate {
    chain through {
        type filter hook forward priority 0; policy drop;
        ct state invalid drop
        ct state established accept
        iifname "inner" tcp flags & (syn | ack) == syn accept
    }
    chain in {
        type filter hook input priority 0;
        iifname "eth0" ct state new drop
    }
}
"""
#: Tells the kernel of a router to forget all connections: netlink asks conntrack to delete, without a filter.
FORGET = """
import socket, struct
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as told:
    told.send(struct.pack("=IHHIIBBH", 20, (1 << 8) | 2, 5, 1, 0, 0, 0, 0))
    kind, = struct.unpack_from("=H", told.recv(64), 4)
    assert kind == 2
"""
#: Seconds for a command of `ip` or `nft`, which take milliseconds.
COMMAND_S = 20.0
#: Waits for the end of its input, which is that of the run, whatever ends it; then kills what runs in these namespaces,
#: and removes them.
REMOVE = """
cat
for space; do
    ip netns pids "$space" | xargs -r kill -KILL
    ip netns delete "$space"
done 2> /dev/null
"""
REPOSITORY = Path(__file__).parents[2]
_numbers = itertools.count()


def missing(relay: Relay | None = None) -> str:
    """Return what this machine lacks to have such hosts, with this relay between them; "" if nothing."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    for tool in ("ip", "nft", "setpriv"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if os.geteuid() != 0:
        return "ip netns needs root"
    try:
        with Hosts(["probe"], relay) as hosts:
            hosts.lose(0.5)
    except HostsError as error:
        return str(error)
    return ""


class HostsError(Exception):
    """This machine does not allow namespaces, or filters in them."""


class Hosts:
    """Some hosts, by name, as a context manager; all that runs on them is killed at its end, or with this process.

    `behind` are the hosts behind a router of their own, which forgets a connection after `memory_s` seconds of silence.
    """

    def __init__(
        self, names: Sequence[str], relay: Relay | None = None, *, behind: Collection[str] = (), memory_s: int = 60
    ) -> None:
        run = f"fp{os.getpid()}n{next(_numbers)}"
        self.address = {name: f"{NETWORK}.{number}" for number, name in enumerate(names, start=1)}
        self._space = {name: f"{run}-{name}" for name in names}
        self._router, self._memory_s = {name: f"{run}-{name}-nat" for name in behind}, memory_s
        self._switch, self._relay = f"{run}-switch", relay
        self._started: list[subprocess.Popen[bytes]] = []
        spaces = [*self._space.values(), *self._router.values(), self._switch]
        self._removal = ["sh", "-c", REMOVE, "remove", *spaces]
        self._loss, self._apart, self._shielded = 0.0, dict[str, set[str]](), set[str]()

    def __enter__(self) -> Self:
        # In a session of its own, so that what kills the run does not kill it, too.
        self._remover = subprocess.Popen(self._removal, stdin=subprocess.PIPE, start_new_session=True)
        try:
            _ip("netns", "add", self._switch)
            _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "switch", "up")
            for number, name in enumerate(self._space):
                space = self._router.get(name, self._space[name])
                _ip("netns", "add", space)
                port = ("peer", "name", f"port{number}", "netns", self._switch)
                _ip("-n", space, "link", "add", "eth0", "type", "veth", *port)
                bridged = () if self._relay else ("master", "switch")
                _ip("-n", self._switch, "link", "set", f"port{number}", *bridged, "up")
                _ip("-n", space, "address", "add", f"{self.address[name]}/24", "dev", "eth0")
                # Packets keep their own size; veth would take 64 KiB as one packet, to be lost or late as a whole.
                _ip("-n", space, "link", "set", "eth0", "gso_max_segs", "1")
                for link in ("lo", "eth0"):
                    _ip("-n", space, "link", "set", link, "up")
                if name in self._router:
                    self._put_behind(space, self._space[name])
            if self._relay:
                self._start_relay(self._relay)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        self._remover.communicate(timeout=COMMAND_S)

    def start(
        self,
        host: str,
        command: Sequence[str],
        *,
        folder: Path,
        out: int | IO[bytes] = subprocess.DEVNULL,
        err: int | IO[bytes] = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Run a program on a host; its process number is the program's own."""
        return self._run(self._space[host], command, folder=folder, out=out, err=err, env=env)

    def more_addresses(self, host: str, count: int) -> list[str]:
        """Give a host so many more addresses; return all of its addresses."""
        first = 100 + list(self.address).index(host) * 10
        more = [f"{NETWORK}.{first + number}" for number in range(count)]
        for address in more:
            _ip("-n", self._space[host], "address", "add", f"{address}/24", "dev", "eth0")
        return [self.address[host], *more]

    def _put_behind(self, router: str, space: str) -> None:
        """Make a host that reaches the others through this router only."""
        _ip("netns", "add", space)
        _ip("-n", router, "link", "add", "inner", "type", "veth", "peer", "name", "eth0", "netns", space)
        for where, link, address in ((router, "inner", INSIDE[0]), (space, "eth0", INSIDE[1])):
            _ip("-n", where, "address", "add", f"{address}/24", "dev", link)
            _ip("-n", where, "link", "set", link, "gso_max_segs", "1", "up")
        _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", space, "route", "add", "default", "via", INSIDE[0])
        settings = {
            "net/ipv4/ip_forward": 1,
            "net/netfilter/nf_conntrack_tcp_loose": 0,
            "net/netfilter/nf_conntrack_tcp_timeout_established": self._memory_s,
        }
        inside = ["ip", "netns", "exec", router]
        _command([*inside, "nft", "-f", "-"], ROUTER)
        for name, value in settings.items():
            _command([*inside, "tee", f"/proc/sys/{name}"], str(value))

    def forget(self, *hosts: str) -> None:
        """Let the routers of these hosts forget all connections, as after a power cut."""
        for host in hosts:
            _command(["ip", "netns", "exec", self._router[host], sys.executable, "-c", FORGET])

    def move(self, host: str, address: str) -> None:
        """Give a host another address on the network, and take its own away."""
        before, self.address[host] = self.address[host], address
        _ip("-n", self._space[host], "address", "del", f"{before}/24", "dev", "eth0")
        _ip("-n", self._space[host], "address", "add", f"{address}/24", "dev", "eth0")

    def _start_relay(self, relay: Relay) -> None:
        command = relay.command([f"port{number}" for number in range(len(self._space))])
        process = self._run(self._switch, command, folder=REPOSITORY, out=subprocess.PIPE, err=subprocess.PIPE)
        assert process.stdout is not None, "it was asked for"
        assert process.stderr is not None, "it was asked for"
        if process.stdout.readline().decode().strip() != READY:
            raise HostsError(f"no packets at the ports: {process.stderr.read().decode().strip()[-500:]}")

    def _run(
        self,
        space: str,
        command: Sequence[str],
        *,
        folder: Path,
        out: int | IO[bytes],
        err: int | IO[bytes],
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", space, *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        self._started.append(process)
        return process

    # ------------------------------------------------------------------------------------------------------- faults

    def lose(self, share: float) -> None:
        """Drop each packet between two hosts with this probability."""
        self._loss = share
        self._filter(self._space)

    def cut(self, *sides: Collection[str]) -> None:
        """Let nothing pass between hosts of different sides."""
        self._apart = {
            host: {other for away in sides if away is not side for other in away} for side in sides for host in side
        }
        self._filter(self._space)

    def mute(self, hosts: Collection[str], to: Collection[str]) -> None:
        """Let nothing pass from these hosts to others; the other way everything passes."""
        self._apart = {other: {*hosts} for other in to}
        self._filter(self._space)

    def shield(self, *hosts: str) -> None:
        """Let nobody begin a connection to these hosts, as behind a NAT that forwards nothing."""
        self._shielded = {*hosts}
        self._filter(self._space)

    def heal(self) -> None:
        """Make all links whole again; shielded hosts remain shielded."""
        self._loss, self._apart = 0.0, {}
        self._filter(self._space)

    def _filter(self, names: Iterable[str]) -> None:
        for name in names:
            rules = []
            if self._apart.get(name):
                rules.append(
                    f"ip saddr {{ {', '.join(self.address[each] for each in sorted(self._apart[name]))} }} drop"
                )
            if name in self._shielded:
                rules.append('iifname "eth0" ct state new drop')
            if self._loss:
                rules.append(f'iifname "eth0" numgen random mod 1000 < {round(1000 * self._loss)} drop')
            lines = ["flush ruleset", "table inet faults {", "chain input {", "type filter hook input priority 0;"]
            text = "\n".join([*lines, *rules, "}", "}", ""])
            _command(["ip", "netns", "exec", self._space[name], "nft", "-f", "-"], text)


def _ip(*words: str) -> None:
    _command(["ip", *words])


def _command(words: Sequence[str], text: str = "") -> None:
    done = subprocess.run(words, input=text, text=True, capture_output=True, timeout=COMMAND_S, check=False)
    if done.returncode:
        raise HostsError(f"{' '.join(words)}: {done.stderr.strip()}")
