"""The order of training samples as src/data/dataset.h, src/data/mixture.h and src/base/rng.h describe it, computed anew.

Philox 4x32-10 (Salmon et al. 2011), XXH3 of 9 to 16 bytes (the names of the keys), a Feistel network of six rounds.
"""
import json
import math
import pathlib
import struct

import numpy

MASK32, MASK64 = 2**32 - 1, 2**64 - 1
SECRET = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c")


def xxh3(data, seed):
    assert 9 <= len(data) <= 16
    word = lambda bytes_, at: struct.unpack_from("<Q", bytes_, at)[0]
    low = word(data, 0) ^ (((word(SECRET, 24) ^ word(SECRET, 32)) + seed) & MASK64)
    high = word(data, len(data) - 8) ^ (((word(SECRET, 40) ^ word(SECRET, 48)) - seed) & MASK64)
    product = low * high
    h = (len(data) + int.from_bytes(low.to_bytes(8, "little"), "big") + high + ((product & MASK64) ^ (product >> 64))) & MASK64
    h = (h ^ h >> 37) * 0x165667919E3779F9 & MASK64
    return h ^ h >> 32


def philox(key, counter, stream=0):
    c = [counter & MASK32, counter >> 32, stream & MASK32, stream >> 32]
    k0, k1 = key & MASK32, key >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & MASK32, (p0 >> 32) ^ c[3] ^ k1, p0 & MASK32]
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c


def normal(key, index):
    r = philox(key, index, 1)
    unit = lambda high, low: ((high << 32 | low) >> 11) * 2.0**-53
    return math.sqrt(-2 * math.log(1 - unit(r[0], r[1]))) * math.cos(2 * math.pi * unit(r[2], r[3]))


def permuted(key, index, n):
    if n == 1:
        return 0
    half = ((n - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(6):
            r = philox(key, right, turn + 2)
            left, right = right, left ^ ((r[0] << 32 | r[1]) & mask)
        index = left << half | right
        if index < n:
            return index


def component_of(sample, weights):
    """Which source the sample comes from, and its number among that source's: halves of the list take turns by their shares."""
    parts = [max(1, round(w / sum(weights) * 2**32)) for w in weights]
    first, last = 0, len(parts)
    while last - first > 1:
        middle = (first + last) // 2
        left, whole = sum(parts[first:middle]), sum(parts[first:last])
        before = sample * left // whole
        if (sample + 1) * left // whole > before:
            sample, last = before, middle
        else:
            sample, first = sample - before, middle
    return first, sample


def tokens_of(folder, languages=None):
    """The tokens of a prepared data set's shards, one after another."""
    folder = pathlib.Path(folder)
    shards = [s for s in json.loads((folder / "manifest.json").read_text())["shards"] if not languages or s["language"] in languages]
    return numpy.concatenate([numpy.fromfile(folder / s["bin"]["path"], "<u2").astype(numpy.int64) for s in shards])


def samples(circles, weights, seed, length, count, first=0):
    """Samples [first, first + count) of the mixture of `circles` of tokens, length + 1 tokens each."""
    rows = []
    for sample in range(first, first + count):
        which, index = component_of(sample, weights)
        circle = circles[which]
        windows = len(circle) // length
        key = xxh3(f"data.train[{which}]".encode(), seed)
        r = philox(key, index // windows)
        epoch_key = r[0] | r[1] << 32
        offset = permuted(epoch_key, 0, len(circle))
        window = permuted(~epoch_key & MASK64, index % windows, windows)
        at = (offset + window * length + numpy.arange(length + 1)) % len(circle)
        rows.append(circle[at])
    return numpy.stack(rows)
