"""A permutation of any size without a table: epochs of a billion sequences cost no memory. No torch here."""

from __future__ import annotations

from hashlib import blake2b

_ROUNDS = 4  # of a Feistel network: Luby and Rackoff, SIAM J. Comput. 17 (1988), 373


def shuffled(index: int, size: int, key: bytes) -> int:
    """The image of `index` under a permutation of 0 to size - 1 that depends on `key`.

    A Feistel network permutes the next even power of two. Results outside the range are permuted again until they are
    inside (cycle walking: Black and Rogaway, CT-RSA 2002), at most four times in the mean.
    """
    half = max((size - 1).bit_length() + 1, 2) // 2
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for number in range(_ROUNDS):
            digest = blake2b(right.to_bytes(8, "little"), digest_size=8, key=key[:64], salt=bytes([number])).digest()
            left, right = right, left ^ (int.from_bytes(digest, "little") & mask)
        index = left << half | right
        if index < size:
            return index


def places_of(step: int, batch: int, size: int, seed: int | None) -> list[int]:
    """The places in the data, 0 to size - 1, of the sequences of step 0, 1, ..., as `place_of`."""
    return [place_of(turn, size, seed) for turn in range(step * batch, (step + 1) * batch)]


def place_of(turn: int, size: int, seed: int | None) -> int:
    """The place, 0 to size - 1, that is read at turn 0, 1, ...: each once in `size` turns, an epoch. seed: of a
    permutation of each epoch; None: the order of the data."""
    epoch, place = divmod(turn, size)
    return place if seed is None else shuffled(place, size, f"{seed}/{epoch}".encode())
