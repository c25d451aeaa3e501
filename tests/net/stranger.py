"""A client that has a key and sends to a peer by hand: it posts one frame over TLS, and prints the answer.

    python tests/net/stranger.py HOST PORT ROUTE CONTENT_TYPE CERTIFICATE KEY AUTHORITY FRAME

It prints the status of the answer and its body in hexadecimal, or why TLS failed, on one line. It is started once for
each message, so it imports nothing of fedpeer: only the test knows what the posted and the printed bytes mean.
"""

from __future__ import annotations

import http.client
import ssl
import sys
from pathlib import Path

#: Seconds; a peer answers at once.
PATIENCE_S = 20.0


def say(
    host: str, port: str, route: str, content_type: str, certificate: str, key: str, authority: str, frame: str
) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate, key)
    connection = http.client.HTTPSConnection(host, int(port), timeout=PATIENCE_S, context=context)
    try:
        connection.request("POST", route, Path(frame).read_bytes(), {"Content-Type": content_type})
        answer = connection.getresponse()
        return f"{answer.status} {answer.read().hex()}"
    except (ssl.SSLError, OSError) as error:
        return f"no answer: {error}"
    finally:
        connection.close()


if __name__ == "__main__":
    print(say(*sys.argv[1:]))
