"""Test strings for tokenizers, made from a seed in a way that src/tokenizer/test_strings.cc repeats exactly.

A string is a few parts: words of many languages, code, emoji with joiners, runs of white space, digits, any Unicode
scalar value, control characters, texts of special tokens and their beginnings, very long words; or, for byte-level
vocabularies, arbitrary bytes.
"""

MASK = (1 << 64) - 1


class Random:
    """splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""

    def __init__(self, seed):
        self.state = seed & MASK

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return self.next() % n


SPACES = [" ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u0085", "\u2028", "\u3000", "\u200b", "\ufeff", "\u000b"]


def scalar(random):
    """A Unicode scalar value, mostly assigned ones."""
    kind = random.below(8)
    if kind < 2:
        return random.below(0x300)
    if kind < 5:
        c = random.below(0x10000)
        return c - 0x1000 if 0xD800 <= c < 0xE000 else c
    if kind < 7:
        return 0x10000 + random.below(0x10000)
    return 0x20000 + random.below(0xF0000)


def text(index, fragments, specials):
    """String `index`. `fragments`: lists of strings by name, `specials`: texts of added tokens (may be empty)."""
    random = Random(index * 0x2545F4914F6CDD1D + 1)
    out = []
    for _ in range(1 + random.below(10)):
        kind = random.below(24)
        if kind < 9:
            out.append(fragments["words"][random.below(len(fragments["words"]))])
        elif kind < 11:
            out.append(fragments["lines"][random.below(len(fragments["lines"]))])
        elif kind < 13:
            out.append(fragments["emoji"][random.below(len(fragments["emoji"]))])
        elif kind < 15:
            space = SPACES[random.below(len(SPACES))] if random.below(2) else " "
            out.append(space * (1 + random.below(1 + random.below(40))))
        elif kind < 17:
            for _ in range(1 + random.below(6)):
                out.append(chr(scalar(random)))
        elif kind < 18:
            for _ in range(1 + random.below(20)):
                out.append(chr(48 + random.below(10)))
        elif kind < 19:
            out.append(chr(random.below(32)))
        elif kind < 21:
            if specials:
                special = specials[random.below(len(specials))]
                out.append(special if random.below(3) else special[: 1 + random.below(len(special))])
        elif kind < 22:
            word = fragments["words"][random.below(len(fragments["words"]))]
            out.append(word * (1 + random.below(60)))
        elif kind < 23:
            out.append(fragments["punctuation"][random.below(len(fragments["punctuation"]))])
        else:
            out.append(chr(97 + random.below(26)) * (1 + random.below(300)))
        if random.below(3):
            out.append(" ")
    return "".join(out)


def raw_bytes(index):
    """Bytes `index`: pieces of valid UTF-8 between arbitrary bytes."""
    random = Random(index * 0x2545F4914F6CDD1D + 2)
    out = bytearray()
    for _ in range(1 + random.below(12)):
        kind = random.below(4)
        if kind == 0:
            for _ in range(1 + random.below(6)):
                out.append(random.below(256))
        elif kind == 1:
            encoded = chr(scalar(random)).encode("utf-8")
            out += encoded[: 1 + random.below(len(encoded))]
        elif kind == 2:
            out += chr(scalar(random)).encode("utf-8")
        else:
            for _ in range(1 + random.below(8)):
                out.append(32 + random.below(95))
    return bytes(out)


def some_ids(index, size):
    """A list of token ids below `size`."""
    random = Random(index * 0x2545F4914F6CDD1D + 3)
    return [random.below(size) for _ in range(random.below(20))]


FNV_OFFSET, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


def hash_ids(state, ids):
    """FNV-1a over whole ids, each list closed by its length."""
    for i in ids:
        state = ((state ^ i) * FNV_PRIME) & MASK
    return ((state ^ (len(ids) + 0x10000000)) * FNV_PRIME) & MASK


def hash_bytes(state, data):
    for b in data:
        state = ((state ^ b) * FNV_PRIME) & MASK
    return ((state ^ (len(data) + 0x10000000)) * FNV_PRIME) & MASK
