"""Knock at the server without a certificate, with someone else's, and with a clinic's own."""

import sys
from pathlib import Path

import grpc  # pyright: ignore[reportMissingModuleSource]

server, root, *kits = sys.argv[1:]


def knock(who, *own):
    """Call something that is not there: only who has come through the door is told so."""
    credentials = grpc.ssl_channel_credentials(Path(root).read_bytes(), *own)
    with grpc.secure_channel(server, credentials) as channel:
        try:
            channel.unary_unary("/nothing/here")(b"", timeout=20)
        except grpc.RpcError as error:
            is_in = error.code() is grpc.StatusCode.UNIMPLEMENTED
            print(f"{who}: {'let in' if is_in else 'refused'} ({error.details()})")


knock("no certificate")
for kit in map(Path, kits):
    knock(kit, *((kit / "startup" / f"client.{end}").read_bytes() for end in ("key", "crt")))
