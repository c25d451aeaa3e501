"""Somebody who has a key and speaks to a peer by hand: says one frame over TLS, and prints what is answered.

    python -m tests.net.stranger HOST PORT CERTIFICATE KEY AUTHORITY FRAME

Prints the code of the refusal, "taken", or why TLS came to nothing, on one line.
"""

from __future__ import annotations

import http.client
import ssl
import sys
from pathlib import Path

from fedpeer.peer.core import codec
from fedpeer.peer.core.messages import Refused
from fedpeer.peer.shell.server import CONTENT_TYPE, ROUTE

#: Seconds; a peer answers at once.
PATIENCE_S = 20.0


def say(host: str, port: int, certificate: str, key: str, authority: str, frame: bytes) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate, key)
    connection = http.client.HTTPSConnection(host, port, timeout=PATIENCE_S, context=context)
    try:
        connection.request("POST", ROUTE, frame, {"Content-Type": CONTENT_TYPE})
        answer = connection.getresponse()
        said = codec.decode_answer(answer.read())
    except (ssl.SSLError, OSError) as error:
        return f"no answer: {error}"
    finally:
        connection.close()
    if isinstance(said, Refused):
        return f"{said.code}: {said.text}"
    if said is not None:
        return f"put out by roster {said.number}"
    return "taken" if answer.status == 204 else f"status {answer.status}"


if __name__ == "__main__":
    host, port, certificate, key, authority, frame = sys.argv[1:]
    print(say(host, int(port), certificate, key, authority, Path(frame).read_bytes()))
