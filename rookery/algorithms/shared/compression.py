"""Messages of differences from what the server knows: error feedback in the form of EF21.

P. Richtárik, I. Sokolov, I. Fatkhullin. NeurIPS 2021, arXiv:2106.05203.
"""

from rookery import tree
from rookery.program.codec import AbstractCodec
from rookery.types import Key, Tree


def encoded_from(
    codec: AbstractCodec, value: Tree, known: Tree | None, key: Key
) -> tuple[tuple[Tree, ...], Tree]:
    """A client's message, and what the server knows of the value after it.

    Args:
        codec: the compressor.
        value: what the message is about.
        known: what the server knows of it; None encodes the value itself.
        key: of the codec.
    """
    if known is None:
        return codec.encode(value, key), ()
    sent = codec.encode(tree.sub(value, known), key)
    return sent, tree.add(known, codec.decode(sent, value))
