"""The content of a peer's own file, `peer3.yaml`, as typed settings: those that concern this machine alone.

What all peers agree on is in `federation.py`. Here are types, ranges, defaults and the checks across settings of this
file. The command line (`cli/`) reads YAML, knows line numbers, and checks that keys and data exist. Paths are as
written, relative to the file's folder, until the reader of the file resolves them.

Pure, and imports no torch: checking a file must be quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, model_serializer, model_validator

from fedpeer.config.address import DEFAULT_PORT, OUTBOUND, Endpoint, PeerUrl, loopback, same_place
from fedpeer.config.choice import Choice, ChoiceError, from_data, plain_value
from fedpeer.config.problems import Path
from fedpeer.config.settings import (
    TABLE_VALIDATION,
    TABLE_VALIDATION_ROWS,
    ChoiceField,
    MetricsField,
    Strict,
    TrackingField,
)

#: Upload bandwidth, in Mbit/s, that scores half-way between the lowest and the best score for bandwidth.
MUCH_BANDWIDTH = 100.0


#: Kinds of files whose changes a running peer can take up.
REFRESHED = ("csv", "parquet", "npz")


def _endpoint(text: str) -> str:
    return str(Endpoint.read(text))


def _listen(text: str) -> str:
    return text if text == OUTBOUND else _endpoint(text)


def _url(text: str) -> str:
    return str(PeerUrl.read(text.removesuffix("/")))


Listen = Annotated[str, AfterValidator(_listen)]
_HostPort = Annotated[str, AfterValidator(_endpoint)]
Url = Annotated[str, AfterValidator(_url)]


class IdentitySettings(Strict):
    """This peer's identity: files that `fedpeer init` or `fedpeer join` made."""

    certificate: str = Field(description="this peer's certificate")
    key: str = Field(description="its private key (Ed25519), readable by its owner only")
    authority: str = Field(description="the certificate of the federation's authority")


class DashboardSettings(Strict):
    """A separate listener for people: dashboard, status and metrics."""

    listen: _HostPort = Field(
        description="such as 127.0.0.1:7503; for browsers on other machines it needs a certificate"
    )
    token_file: str = Field(description="file with the access token")
    certificate: str | None = Field(
        default=None, description="an ECDSA P-256 certificate, for browsers on other machines"
    )
    key: str | None = Field(default=None, description="the private key of that certificate")
    metrics: bool = Field(default=True, description="whether /metrics is served here too")


class DataSettings(Strict):
    """This peer's data: a file of its own, a known data set, or its part of the federation's simulation."""

    source: ChoiceField = Field(
        description="KIND is csv, parquet, npz, images, python or the name of a data set; its settings are keys "
        "beside it; simulation: 3 is the data of peer3 in fedpeer simulate",
    )
    test_fraction: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="fraction held out for testing; default: the data's own test part, else 0.25",
    )
    validation: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="fraction of the training examples held out; the model best on them is kept beside the last one; "
        f"default: {TABLE_VALIDATION} of a table (csv, parquet) with {TABLE_VALIDATION_ROWS} or more, else 0",
    )
    normalise: Literal["none", "standard", "minmax"] | None = Field(
        default=None,
        description="scaling of the inputs; default: standard for your own files and for regression, else none",
    )
    refresh: bool = Field(
        default=False,
        description="whether a running peer takes up changes of its file (csv, parquet, npz) at its next round",
    )

    @model_validator(mode="before")
    @classmethod
    def _spelled(cls, found: Any) -> Any:
        """Accept `{csv: ward3.csv, label: outcome, test_fraction: 0.25}`, or the same as one choice."""
        if isinstance(found, DataSettings) or (isinstance(found, Mapping) and "source" in found):
            return found
        ours = ("test_fraction", "validation", "normalise", "refresh")
        if isinstance(found, Mapping) and len(found) > 1:
            name, *others = [key for key in found if key not in ours] or [""]
            if not isinstance(found.get(name), (str, int, float)):
                raise ChoiceError("the first key must be the kind of the data, such as csv: ward3.csv")
            choice = Choice(str(name), found[name], {key: found[key] for key in others})
            return {"source": choice, **{key: found[key] for key in ours if key in found}}
        choice = from_data(found)
        kept = {key: value for key, value in choice.settings.items() if key not in ours}
        settings = {key: plain_value(choice.settings[key]) for key in ours if key in choice.settings}
        return {"source": Choice(choice.name, choice.value, kept), **settings}

    @model_serializer
    def _mapping(self) -> dict[str, Any]:
        written = {"test_fraction": self.test_fraction, "validation": self.validation, "normalise": self.normalise}
        written |= {"refresh": self.refresh or None}
        settings = {**self.source.settings, **{key: value for key, value in written.items() if value is not None}}
        if self.source.value is not None:
            return {self.source.name: self.source.value, **settings}
        return {self.source.name: settings} if settings else {"source": self.source.name}

    @property
    def part(self) -> int | None:
        """Number of the simulated peer that has these data; None for other data."""
        return int(self.source.value) if self.source.name == "simulation" else None

    @model_validator(mode="after")
    def _simulated(self) -> DataSettings:
        if self.source.name == "simulation":
            number = plain_value(self.source.value)
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError("simulation takes the number of a peer, 1 or more, such as simulation: 3")
            ours = (self.test_fraction, self.validation, self.normalise)
            if self.source.settings or self.refresh or any(each is not None for each in ours):
                raise ValueError("simulation takes only a number; write the other settings into the federation file")
        elif self.refresh and self.source.name not in REFRESHED:
            raise ValueError(f"refresh is for files ({', '.join(REFRESHED)}), not for {self.source.name}; leave it out")
        return self


_DataField = Annotated[
    DataSettings,
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"type": "object", "minProperties": 1}],
            "description": "such as {csv: ward3.csv, label: outcome, test_fraction: 0.25}, or {simulation: 3}",
        }
    ),
]


class PeerFile(Strict):
    """The content of `peer3.yaml`."""

    federation: str = Field(description="the federation file")
    id: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="this peer's name in the federation: letters, digits, dots and hyphens, at most 63",
    )
    listen: Listen = Field(
        default=f"0.0.0.0:{DEFAULT_PORT}",
        description="where other peers reach this machine; none: nobody does, and it opens all connections itself",
    )
    address: Url | None = Field(
        default=None, description="URL at which other peers reach it; default: that of the roster, else of listen"
    )
    seeds: list[Url] = Field(default=[], max_length=64, description="addresses of peers to connect to first")
    identity: IdentitySettings | None = Field(default=None, description="keys and certificates")
    roster: str = Field(default="roster.json", description="the list of all peers, signed by the authority")
    data: _DataField = Field(description="this peer's data; see the page on data")
    network: ChoiceField | None = Field(
        default=None, description="a network of its own, bigger or smaller, if the shared slices fit it"
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(default="auto", description="where it trains")
    metrics: MetricsField = Field(
        default=(), description="further metrics of its model at each evaluation, such as [auc, f1]; default: none"
    )
    tracking: TrackingField = Field(
        default=(), description="experiment trackers that get its settings and scores, as simulation.tracking"
    )
    bandwidth: float = Field(
        default=MUCH_BANDWIDTH,
        gt=0,
        description="Mbit/s that it can send: a peer that can send more becomes a candidate earlier",
    )
    carry: float | None = Field(
        default=None,
        ge=0,
        description="Mbit/s that it carries between peers that cannot connect to each other; 0: nothing; default: no "
        "limit",
    )
    dashboard: DashboardSettings | None = Field(default=None, description="a listener for people; default: none")
    state: str | None = Field(default=None, description="folder of its durable state; default: ID-state")
    transport: Literal["https", "plain-http"] = Field(
        default="https", description="plain-http: without identities, on this machine only, for trials"
    )
    discovery: bool = Field(default=False, description="look for peers on the local network (fedpeer[discovery])")
    allow_python: list[str] = Field(
        default=[], description="top packages whose code the federation file may name (python:package.module:function)"
    )

    @property
    def outbound(self) -> bool:
        """True if this peer's file says that nobody can connect to it."""
        return self.listen == OUTBOUND

    def contradictions(self) -> list[tuple[Path, str]]:
        """Return the contradictions between well-typed settings: (path, text)."""
        found: list[tuple[Path, str]] = []
        plainly = self.transport == "plain-http"
        urls: dict[Path, PeerUrl] = {("seeds", n): PeerUrl.read(seed) for n, seed in enumerate(self.seeds)}
        urls |= {} if self.address is None else {("address",): PeerUrl.read(self.address)}
        if plainly:
            hosts: dict[Path, str] = {} if self.outbound else {("listen",): Endpoint.read(self.listen).host}
            hosts |= {path: url.host for path, url in urls.items()}
            for path, host in hosts.items():
                if not loopback(host):
                    found.append(
                        (path, f"plain-http works only on this machine, and {host} is not; use 127.0.0.1 or [::1]")
                    )
            if self.outbound:
                found.append((("listen",), "none needs transport https; with plain-http peers connect to one another"))
        elif self.identity is None:
            found.append((("identity",), "https needs certificate, key and authority; fedpeer init makes them"))
        for path, url in urls.items():
            wanted = "http" if plainly else "https"
            if url.scheme != wanted:
                found.append((path, f"transport {self.transport} needs {wanted}://; change one of them"))
        if self.outbound and self.discovery:
            found.append((("discovery",), "it announces where this peer listens, and listen is none; leave it out"))
        board = self.dashboard
        if board is not None:
            if (board.certificate is None) != (board.key is None):
                found.append((("dashboard",), "certificate and key belong together; write both or neither"))
            elif board.certificate is None and not loopback(Endpoint.read(board.listen).host):
                text = "for other machines it needs certificate and key (ECDSA P-256); or listen on 127.0.0.1 or [::1]"
                found.append((("dashboard", "listen"), text))
            if not self.outbound and same_place(Endpoint.read(board.listen), Endpoint.read(self.listen)):
                found.append((("dashboard", "listen"), "the same address as listen; choose another port"))
        return found
