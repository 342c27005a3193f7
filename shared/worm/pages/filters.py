"""Bloom filters that say which pages a layer cannot have, so that most layers need not be read.

A key's places are `a + i * b` modulo the number of bits (double hashing), with `a` and `b` from one BLAKE2b of its
UTF-8 bytes: the same on every machine, forever. With sixteen bits per key, about one absent key in 2,000 passes; a
present key always passes. As text, it is base64 of

    version, 1 byte | hashes, 1 | number of bits, 8 | bits | CRC-32 of all before, 4

with numbers little-endian. A lost bit would hide a page, so the CRC is always checked.
"""

from __future__ import annotations

import binascii
import math
import struct
from base64 import b64decode, b64encode
from collections.abc import Collection
from hashlib import blake2b

from worm.errors import Corrupt, Invalid

VERSION = 1
BITS_PER_KEY_MAX = 64
_BITS_MIN = 64
_ONE = ord("1")
_HEAD = struct.Struct("<BBQ")
_CRC = struct.Struct("<I")
_HASHES = struct.Struct("<QQ")


class KeyFilter:
    """A filter over a set of names. Without names, it lets nothing pass and takes no bytes."""

    __slots__ = ("_bits", "_count", "_hashes")

    def __init__(self, bits: bytes, count: int, hashes: int) -> None:
        self._bits = bits
        self._count = count
        self._hashes = hashes

    @classmethod
    def build(cls, keys: Collection[str], bits_per_key: int) -> KeyFilter:
        """With 0 bits per key, it lets everything pass, however many keys there are."""
        if not 0 <= bits_per_key <= BITS_PER_KEY_MAX:
            raise Invalid(f"bits per key must be 0 to {BITS_PER_KEY_MAX}, not {bits_per_key}")
        if keys and not bits_per_key:
            return cls(b"\xff" * (_BITS_MIN // 8), _BITS_MIN, 1)
        hashes = max(1, round(bits_per_key * math.log(2)))
        count = max(_BITS_MIN, (len(keys) * bits_per_key + 7) // 8 * 8) if keys else 0
        digits = bytearray(b"0") * count  # the last is bit 0; converting text is faster than setting bits one by one
        for key in keys:
            place, step = _places(key, count)
            for at in range(place, place + hashes * step, step):
                digits[-1 - at % count] = _ONE
        return cls(int(digits or b"0", 2).to_bytes(count // 8, "little"), count, hashes)

    @property
    def size(self) -> int:
        """The size of its bits in bytes."""
        return len(self._bits)

    def may_have(self, key: str) -> bool:
        """False: the key is absent. True: it is most likely present."""
        return self.may_have_hashed(hashed(key))

    def may_have_hashed(self, key: tuple[int, int]) -> bool:
        """`may_have` for a key that was already hashed, for callers that check many filters."""
        bits, count = self._bits, self._count
        if not count:
            return False
        place, step = key[0] % count, 1 + key[1] % (count - 1)
        for _ in range(self._hashes):
            if not bits[place >> 3] >> (place & 7) & 1:
                return False
            place = (place + step) % count
        return True

    def encode(self) -> str:
        """As text, for JSON."""
        body = _HEAD.pack(VERSION, self._hashes, self._count) + self._bits
        return b64encode(body + _CRC.pack(binascii.crc32(body))).decode()

    @classmethod
    def decode(cls, text: str, key: str) -> KeyFilter:
        """From `encode`. `key` names the object that holds it, for the error."""
        try:
            body = b64decode(text, validate=True)
        except ValueError as error:
            raise Corrupt(f"its filter is not base64: {error}", key=key) from error
        if body[:1] not in (b"", bytes((VERSION,))):
            raise Corrupt(f"its filter has version {body[0]}; this version of worm reads version {VERSION}", key=key)
        cut = len(body) - _CRC.size
        if cut < _HEAD.size or _CRC.pack(binascii.crc32(body[:cut])) != body[cut:]:
            raise Corrupt("its filter is damaged", key=key)
        _, hashes, count = _HEAD.unpack_from(body)
        bits = body[_HEAD.size : cut]
        if not hashes or count != len(bits) * 8 or 0 < count < _BITS_MIN:
            raise Corrupt(f"its filter has {len(bits)} bytes for {count} bits and {hashes} hashes", key=key)
        return cls(bits, count, hashes)


def hashed(key: str) -> tuple[int, int]:
    """The two numbers that give the places of a key in every filter. Text that is not UTF-8 is never a key, but may be
    looked up."""
    first, second = _HASHES.unpack(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest())
    return first, second


def _places(key: str, count: int) -> tuple[int, int]:
    """The first place of a key and the step to the next ones."""
    first, second = hashed(key)
    return first % count, 1 + second % (count - 1)
