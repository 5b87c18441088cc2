"""Connect to the server without a certificate, with a foreign one, and with a clinic's own."""

import sys
from pathlib import Path

import grpc  # pyright: ignore[reportMissingModuleSource]

server, root, *kits = sys.argv[1:]


def connect(who, *own):
    """Call a method that does not exist: only an accepted caller is told so."""
    credentials = grpc.ssl_channel_credentials(Path(root).read_bytes(), *own)
    with grpc.secure_channel(server, credentials) as channel:
        try:
            channel.unary_unary("/nothing/here")(b"", timeout=20)
        except grpc.RpcError as error:
            is_accepted = error.code() is grpc.StatusCode.UNIMPLEMENTED
            print(f"{who}: {'accepted' if is_accepted else 'refused'} ({error.details()})")


connect("no certificate")
for kit in map(Path, kits):
    connect(kit, *((kit / "startup" / f"client.{end}").read_bytes() for end in ("key", "crt")))
