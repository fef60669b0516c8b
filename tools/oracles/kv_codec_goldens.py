"""Writes tests/data/kv_codecs/goldens.bin: canonical bytes of encoded vectors, from the numpy reference of the KV codecs.

    python kv_codec_goldens.py PATH/TO/kv_codecs.py OUT

Layout, little-endian: u32 vectors, u32 channels, f32 inputs [vectors][channels]; then records until the end of the file:
u8 kind (1 affine, 2 turbo key, 3 rotated, 4 qN_0, 5 rotated qN_0), u8 bits, u8 group, u8 plain dtype, u8 scale dtype (0 f32, 1 f16,
2 bf16), u8 options (1 the GPU rule of affine, 2 no guard, 4 inputs times 128), u16 dim, u32 bytes of one vector, then per vector the codes, scales and offsets of its first `dim` channels."""
import importlib.util
import struct
import sys

import numpy as np

TYPES = ("f32", "f16", "bf16")


def inputs():
    random = np.random.default_rng(20240517)
    x = random.standard_normal((12, 512)).astype(np.float32)
    x[1] += 40
    x[2] = 0.75
    x[3] = 0
    x[4] *= np.float32(1e-6)
    x[5] *= np.float32(1e4)
    x[6] = -np.abs(x[6])
    x[7] = np.abs(x[7]) + 1
    x[8, ::17] *= 50
    x[9] = np.round(x[9] * 4) / 4
    x[10] = -3000
    x[11, 32:96] = 0
    return x


def scale_bytes(k, s, dtype):
    return k.bits_of(s, dtype).astype("<u4" if dtype == "f32" else "<u2").tobytes()


def q8_0(x):
    """Signed bytes and one f16 scale per 32 channels; the divisor is the scale as f16 holds it."""
    groups = x.astype(np.float32).reshape(-1, 32)
    s = np.minimum(np.abs(groups).max(-1) / np.float32(127), np.float32(65504)).astype(np.float16)
    d = s.astype(np.float32)[:, None]
    q = np.where(d == 0, 0, np.clip(np.rint(groups / np.where(d == 0, np.float32(1), d)), -127, 127)).astype(np.int8)
    return q.tobytes() + s.astype("<f2").tobytes()


def q_0(k, x, bits):
    """Whole numbers -n to n - 1 and one f16 scale per 32 channels: of four scales, the one whose codes explain most."""
    f = np.float32
    n = f(1 << (bits - 1))
    codes, scales = [], []
    for group in x.astype(f).reshape(-1, 32):
        low, high = group.min(), group.max()
        top = low if abs(low) > abs(high) else high
        best, s = f(-1), f(0)
        for tried in range(4 if top != 0 else 0):
            inverse = f(-(n - f(1) + f(0.5) * f(tried)) / top)
            c = np.clip(np.rint(group * inverse), -n, n - f(1)).astype(f)

            def total(products):  # eight parts, in pairs
                part = np.zeros(8, f)
                for row in products.reshape(4, 8):
                    part = part + row
                return f(f(f(part[0] + part[4]) + f(part[2] + part[6])) + f(f(part[1] + part[5]) + f(part[3] + part[7])))

            product, square = total(group * c), total(c * c)
            explained = f(product * f(product / square))
            if explained > best:
                best, s = explained, f(product / square)
        scale = np.float16(np.clip(s, f(-65504), f(65504)))
        d = f(scale)
        codes.append((np.clip(np.rint(group / d), -n, n - f(1)) if d != 0 else np.zeros(32, f)) + n)
        scales.append(scale)
    return k.pack(np.concatenate(codes).astype(np.uint8), bits).tobytes() + np.array(scales).astype("<f2").tobytes()


def main():
    spec = importlib.util.spec_from_file_location("kv_codecs", sys.argv[1])
    k = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(k)
    x = inputs()
    out = [struct.pack("<II", *x.shape), x.astype("<f4").tobytes()]

    def record(kind, bits, group, plain, scale, dim, rows, options=0):
        out.append(struct.pack("<BBBBBBHI", kind, bits, group, TYPES.index(plain), TYPES.index(scale), options, dim, len(rows[0])))
        out.extend(rows)

    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            for plain, scale in (("bf16", "f16"), ("bf16", "bf16"), ("f32", "f32"), ("f16", "f16")):
                if group != 64 and (plain, scale) != ("bf16", "f16"):
                    continue
                rows = []
                for v in x[:, :128]:
                    q, _, _ = k.affine_encode(k.round_to(v, plain), bits, group, "f32")
                    _, s, b = k.affine_encode(k.round_to(v, plain), bits, group, scale)
                    rows.append(k.pack(q, bits).tobytes() + scale_bytes(k, s, scale) + scale_bytes(k, b, scale))
                record(1, bits, group, plain, scale, 128, rows)
    for bits in (2, 4, 5, 8):
        for dim in (64, 256):
            rows = []
            for v in x[:, :dim]:
                q, s, z = k.turbo_encode_keys(k.round_to(v, "bf16"), bits)
                rows.append(k.pack(q, bits).tobytes() + s.astype("<f2").tobytes() + z.astype("<f2").tobytes())
            record(2, bits, 32, "bf16", "f16", dim, rows)
    for bits in (2, 3, 4, 5, 8):
        for dim in (64, 128, 256, 512):
            rows = []
            for v in x[:, :dim]:
                q, r = k.turbo_encode_values(k.round_to(v, "bf16"), bits)
                rows.append(k.pack(q, bits).tobytes() + r.astype("<f2").tobytes())
            record(3, bits, 32, "bf16", "f16", dim, rows)
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64):
            rows = []
            for v in x[:, :128]:
                q, _, _ = k.affine_encode(k.round_to(v, "bf16"), bits, group, "f32", gpu_compat=True)
                _, s, b = k.affine_encode(k.round_to(v, "bf16"), bits, group, "f16", gpu_compat=True)
                rows.append(k.pack(q, bits).tobytes() + scale_bytes(k, s, "f16") + scale_bytes(k, b, "f16"))
            record(1, bits, group, "bf16", "f16", 128, rows, 1)
    for guard in (True, False):
        options = 4 if guard else 6
        for bits in (2, 4, 5, 8):
            for dim in (64, 128):
                rows = []
                for v in x[:, :dim] * np.float32(128):
                    q, s, z = k.turbo_encode_keys(k.round_to(v, "bf16"), bits, guard)
                    with np.errstate(over="ignore"):
                        rows.append(k.pack(q, bits).tobytes() + s.astype("<f2").tobytes() + z.astype("<f2").tobytes())
                record(2, bits, 32, "bf16", "f16", dim, rows, options)
        for bits, dim in ((3, 64), (4, 128), (5, 64), (8, 256)):
            rows = []
            for v in x[:, :dim] * np.float32(128):
                q, r = k.turbo_encode_values(k.round_to(v, "bf16"), bits, guard)
                rows.append(k.pack(q, bits).tobytes() + r.astype("<f2").tobytes())
            record(3, bits, 32, "bf16", "f16", dim, rows, options)
    for dim in (32, 96, 128):
        for plain in ("bf16", "f32"):
            record(4, 8, 32, plain, "f16", dim, [q8_0(k.round_to(v, plain)) for v in x[:, :dim]])
    for dim in (64, 128, 256, 512):
        record(5, 8, 32, "bf16", "f16", dim, [q8_0(k.rotate(k.round_to(v, "bf16"))) for v in x[:, :dim]])
    for bits in (3, 4, 5, 6):
        for dim in (32, 96):
            record(4, bits, 32, "bf16", "f16", dim, [q_0(k, k.round_to(v, "bf16"), bits) for v in x[:, :dim]])
        for dim in (64, 256):
            record(5, bits, 32, "bf16", "f16", dim, [q_0(k, k.rotate(k.round_to(v, "bf16")), bits) for v in x[:, :dim]])
    with open(sys.argv[2], "wb") as file:
        file.write(b"".join(out))


main()
