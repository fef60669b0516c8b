#!/usr/bin/env python3
"""Small .kvk files written from the format's description alone (kv-cache.md 15), in both layouts: goldens of
src/kv/kvk_file_test.cc and the corpus of the fuzz target kvk. Nothing but the standard library; deterministic.

    tools/oracles/kvk_goldens.py tests/data
"""
import json
import struct
import sys
from pathlib import Path

MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


def rotate(x, r):
    return ((x << r) | (x >> (64 - r))) & MASK


def xxh64(data, seed=0):
    """XXH64 as its specification gives it."""
    def lane(acc, value):
        return rotate((acc + value * P2) & MASK, 31) * P1 & MASK
    n, at = len(data), 0
    if n >= 32:
        acc = [(seed + P1 + P2) & MASK, (seed + P2) & MASK, seed, (seed - P1) & MASK]
        while at + 32 <= n:
            for i in range(4):
                acc[i] = lane(acc[i], struct.unpack_from("<Q", data, at + 8 * i)[0])
            at += 32
        h = (rotate(acc[0], 1) + rotate(acc[1], 7) + rotate(acc[2], 12) + rotate(acc[3], 18)) & MASK
        for a in acc:
            h = ((h ^ lane(0, a)) * P1 + P4) & MASK
    else:
        h = (seed + P5) & MASK
    h = (h + n) & MASK
    while at + 8 <= n:
        h = (rotate(h ^ lane(0, struct.unpack_from("<Q", data, at)[0]), 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= n:
        h = (rotate(h ^ (struct.unpack_from("<I", data, at)[0] * P1 & MASK), 23) * P2 + P3) & MASK
        at += 4
    while at < n:
        h = rotate(h ^ (data[at] * P5 & MASK), 11) * P1 & MASK
        at += 1
    h = (h ^ (h >> 33)) * P2 & MASK
    h = (h ^ (h >> 29)) * P3 & MASK
    return h ^ (h >> 32)


def align(value, to):
    return (value + to - 1) // to * to


# Plain: one full group (layers 0 and 2) and one windowed group (layer 1, W 6, 2 sinks), f32, 11 tokens, pages of 4.
# Latents: layer 1 of keys and values beside MLA layers: two with an indexer, one of MTP; and two attachments.
TOKENS, PAGE, STATE = list(range(100, 111)), 4, bytes(range(16))
KV = {"codec": "f32", "plain_k": "f32", "plain_v": "f32"}
MLA = {"codec": "mla", "plain_k": "f32", "plain_v": "f32", "max_tokens": 64}
PLAIN = [
    {"layers": [0, 2], "kv_heads": 2, "head_dim_k": 2, "head_dim_v": 3, "first": 0, "keep": 0, "says": KV, "kind": "kv"},
    {"layers": [1], "kv_heads": 1, "head_dim_k": 2, "head_dim_v": 2, "first": 5, "keep": 2, "window": 6, "says": KV, "kind": "rotating"},
]
LATENTS = [
    {"layers": [0, 2], "kv_heads": 1, "head_dim_k": 5, "head_dim_v": 3, "dsa": 2, "first": 0, "keep": 0, "says": MLA | {"dsa_head_dim": 2}, "kind": "mla-dsa"},
    {"layers": [1], "kv_heads": 2, "head_dim_k": 2, "head_dim_v": 3, "first": 0, "keep": 0, "says": KV, "kind": "kv"},
    {"layers": [3], "kv_heads": 1, "head_dim_k": 5, "head_dim_v": 3, "first": 0, "keep": 0, "says": MLA | {"mtp": True}, "kind": "mtp-mla"},
]
ATTACHMENTS = [
    {"schema": "mtp-cache-1", "metadata": {"model": "drafter", "step": 7, "scale": 0.5, "ready": True},
     "tensors": [("f32", [2, 3], struct.pack("<6f", *range(6))), ("u8", [], b"\x09")]},
    {"schema": "empty-1", "metadata": {}, "tensors": []},
]


def widths(group):
    return [group["head_dim_k"], group["head_dim_v"]] + ([group["dsa"]] if "dsa" in group else [])


def row(groups, g, layer, plane, head, position):
    """F bytes of one head's row: floats that name their place."""
    return b"".join(struct.pack("<f", 10000 * g + 1000 * layer + 100 * (2 * plane + head) + position + i / 8) for i in range(widths(groups[g])[plane]))


def stored(group, position):
    return position >= group["first"] or position < group["keep"]


def page_tensor(groups, g, index):
    group, out = groups[g], b""
    for layer in range(len(group["layers"])):
        for plane, width in enumerate(widths(group)):
            data = b""
            for head in range(group["kv_heads"]):
                for position in range(index * PAGE, (index + 1) * PAGE):
                    live = position < len(TOKENS) and stored(group, position)
                    data += row(groups, g, layer, plane, head, position) if live else bytes(4 * width)
            out += data + bytes(align(len(data), 64) - len(data))
    return out + bytes(align(len(out), 256) - len(out))


def dense_tensor(groups, g, layer, plane):
    group = groups[g]
    return b"".join(row(groups, g, layer, plane, head, p) for head in range(group["kv_heads"]) for p in range(len(TOKENS)) if stored(group, p))


def build(layout, model, state, attachments):
    tensors, end = [], 0

    def tensor(data):
        nonlocal end
        entry = {"off": align(end, 4096), "bytes": len(data), "hash": f"{xxh64(data):016x}"}
        tensors.append((entry["off"], data))
        end = entry["off"] + len(data)
        return entry

    groups = []
    for g, group in enumerate(model):
        out = {k: group[k] for k in ("layers", "kv_heads", "head_dim_k", "head_dim_v", "keep")}
        out |= group["says"] | {"first_position": group["first"]}
        if "window" in group:
            out["window"] = group["window"]
        if layout == "pages":
            live = [i for i in range(align(len(TOKENS), PAGE) // PAGE)
                    if any(stored(group, p) for p in range(i * PAGE, min((i + 1) * PAGE, len(TOKENS))))]
            out |= {"P": PAGE, "page_bytes": len(page_tensor(model, g, 0)), "pages": [{"index": i} | tensor(page_tensor(model, g, i)) for i in live]}
        else:
            out["tensors"] = [tensor(dense_tensor(model, g, layer, plane)) for layer in range(len(group["layers"])) for plane in range(len(widths(group)))]
        groups.append(out)
    caches = []
    for layer in range(sum(len(group["layers"]) for group in model)):
        g = next(i for i, group in enumerate(model) if layer in group["layers"])
        group, out = model[g], groups[g]
        cache = {"kind": group["kind"], "offset": len(TOKENS), "min_reusable": 0, "first_position": group["first"],
                 "dtype": "f32", "codec": group["says"]["codec"]}
        if "window" in group:
            cache |= {"window": group["window"], "keep": group["keep"]}
        if "max_tokens" in group["says"]:
            cache |= {"kv_lora_rank": group["head_dim_k"], "rope_head_dim": group["head_dim_v"], "max_tokens": group["says"]["max_tokens"]}
            if "dsa" in group:
                cache["dsa_head_dim"] = group["dsa"]
        if layout == "dense":
            count = len(widths(group))
            at = count * group["layers"].index(layer)
            cache["tensors"] = out["tensors"][at:at + count]
        caches.append(cache)
    header = {"format": 1, "layout": layout, "codec_provider": "kvasir-kv-1", "created_at": 1700000000000, "model_id": "golden",
              "config_fingerprint": "c", "weights_digest": "w", "numerics_id": "n", "scheme_key": "plain-f32", "tokenizer_hash": "t",
              "ns": "", "name": "", "metadata": "", "tokens": TOKENS, "min_reusable": 0, "stage": "encoded", "groups": groups, "caches": caches}
    if state:
        header["state"] = tensor(state)
    if attachments:
        header["attachments"] = [a | {"tensors": [tensor(data) | {"shape": shape, "dtype": dtype} for dtype, shape, data in a["tensors"]]}
                                 for a in attachments]
    text = json.dumps(header, separators=(",", ":")).encode()
    start = align(64 + len(text), 4096)
    out = bytearray(start + end)
    out[0:40] = struct.pack("<8sIIQQQ", b"KVASIRKV", 1, len(text), start, xxh64(text), start + end)
    out[64:64 + len(text)] = text
    for offset, data in tensors:
        out[start + offset:start + offset + len(data)] = data
    return bytes(out)


def main():
    assert xxh64(b"") == 0xEF46DB3751D8E999 and xxh64(b"abc") == 0x44BC2CF5AD770999
    root = Path(sys.argv[1])
    files = {"pages": build("pages", PLAIN, STATE, []), "dense": build("dense", PLAIN, STATE, []),
             "latents": build("pages", LATENTS, b"", ATTACHMENTS)}
    for name, data in files.items():
        for folder in ("kv", "fuzz/kvk"):
            (root / folder).mkdir(parents=True, exist_ok=True)
            (root / folder / f"{name}.kvk").write_bytes(data)
    # Of hostile headers the fuzz target also meets latents and attachments in the other layout.
    (root / "fuzz/kvk" / "latents-dense.kvk").write_bytes(build("dense", LATENTS, b"", ATTACHMENTS))


if __name__ == "__main__":
    main()
