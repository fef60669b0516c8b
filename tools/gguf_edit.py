"""Reads where things are in a GGUF file and writes damaged copies of it, for acceptance tests (standard library only)."""

import dataclasses
import math
import pathlib
import struct

# Bytes of a block and its elements, by ggml type number, for the types that the starter models use.
BLOCKS = {0: (4, 1), 1: (2, 1), 2: (18, 32), 3: (20, 32), 6: (22, 32), 7: (24, 32), 8: (34, 32), 10: (84, 256),
          11: (110, 256), 12: (144, 256), 13: (176, 256), 14: (210, 256), 20: (18, 32), 23: (136, 256), 30: (2, 1)}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}


@dataclasses.dataclass
class Tensor:
    name: str
    shape: tuple
    kind: int
    offset: int  # from the start of the file
    bytes: int
    name_at: int  # where the characters of its name begin


class Gguf:
    """The metadata and tensor table of a file; `value_at[key]` is where a string value's characters begin."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        with open(path, "rb") as file:
            self._file = file
            magic, version, tensors, values = struct.unpack("<4sIQQ", file.read(24))
            if magic != b"GGUF" or version not in (2, 3):
                raise ValueError(f"{path}: not a GGUF file of version 2 or 3")
            self.metadata, self.value_at = {}, {}
            for _ in range(values):
                key = self._string()
                kind = self._scalar("I")
                self.value_at[key] = file.tell() + (8 if kind == 8 else 0)
                self.metadata[key] = self._value(kind)
            table = []
            for _ in range(tensors):
                name_at = file.tell() + 8
                name = self._string()
                shape = tuple(self._scalar("Q") for _ in range(self._scalar("I")))
                table.append((name, shape, self._scalar("I"), self._scalar("Q"), name_at))
            alignment = self.metadata.get("general.alignment", 32)
            data = -(-file.tell() // alignment) * alignment
        self.tensors = {}
        for name, shape, kind, offset, name_at in table:
            size, elements = BLOCKS[kind]
            self.tensors[name] = Tensor(name, shape, kind, data + offset, math.prod(shape) // elements * size, name_at)
        self.tensor_bytes = sum(tensor.bytes for tensor in self.tensors.values())

    def _scalar(self, code):
        return struct.unpack("<" + code, self._file.read(struct.calcsize(code)))[0]

    def _string(self):
        return self._file.read(self._scalar("Q")).decode()

    def _value(self, kind):
        if kind == 8:
            return self._string()
        if kind == 9:
            inner, count = self._scalar("I"), self._scalar("Q")
            if inner == 8:
                return [self._string() for _ in range(count)]
            return list(struct.unpack(f"<{count}{SCALARS[inner]}", self._file.read(count * struct.calcsize(SCALARS[inner]))))
        return self._scalar(SCALARS[kind])

    def patched(self, out, edits, truncate=None):
        """Writes a copy with `edits` {offset: bytes} applied, cut at `truncate` bytes if given."""
        content = bytearray(self.path.read_bytes())
        for offset, new in edits.items():
            content[offset:offset + len(new)] = new
        pathlib.Path(out).write_bytes(content[:truncate])
        return out
