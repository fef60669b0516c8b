// The micro-kernels: R input rows against one or more panels over one chunk. Sums stay in registers within a
// chunk and rest in `acc` between chunks; storing an f32 and loading it again changes nothing, so neither R
// nor the number of panels, nor how rows are grouped, shows in the bits. Included inside the per-level
// namespace.

struct Int8Row {
  const uint8_t* codes;      // of the first row at this chunk's first column
  const uint8_t* scales;     // f32 per block
  const uint8_t* sums;       // f32 per block: scale * sum of codes
  const uint8_t* code_sums;  // i16 per 16 columns
  size_t stride;
};

KVASIR_INLINE float float_at(const uint8_t* p, size_t index) {
  float value;
  __builtin_memcpy(&value, p + 4 * index, 4);
  return value;
}
KVASIR_INLINE int half_at(const uint8_t* p, size_t index) {
  int16_t value;
  __builtin_memcpy(&value, p + 2 * index, 2);
  return value;
}

// kSub: columns under one weight scale, 16 or 32. `offset` is subtracted from every code.
template <int R, int kSub, bool kMinima, bool kWide>
static void int8_tile(const CodeChunk& w, int blocks, const Int8Row& x, int offset, float* acc) {
  constexpr bool kOffset = !kMinima || (kWide && kSignedWide);
  alignas(64) int32_t start[kOffset ? R : 1][16];
  if constexpr (kOffset) {
    for (int r = 0; r < R; ++r) {
      const uint8_t* sums = x.code_sums + x.stride * r;
      if constexpr (kSub == 16) {
        for (int i = 0; i < 16; ++i) start[r][i] = -offset * half_at(sums, i);
      } else {
        for (int b = 0; b < 8; ++b) start[r][b] = -offset * (half_at(sums, 2 * b) + half_at(sums, 2 * b + 1));
      }
    }
  }
  Floats a[R];
  for (int r = 0; r < R; ++r) a[r] = load(acc + 16 * r);
  for (int b = 0; b < blocks; ++b) {
    const uint8_t* codes = x.codes + kBlockCols * b;
    if constexpr (kSub == 32) {
      Ints dot[R];
      for (int r = 0; r < R; ++r) dot[r] = kOffset ? set1(start[kOffset ? r : 0][b]) : set1(0);
#pragma GCC unroll 8
      for (int q = 0; q < 8; ++q) {
        const Bytes quad = load(w.codes[8 * b + q]);
        for (int r = 0; r < R; ++r) dot[r] = dot4<kWide>(dot[r], quad, codes + x.stride * r + 4 * q);
      }
      const Floats scale = load(w.scale[b]);
      for (int r = 0; r < R; ++r)
        a[r] = fma(mul(to_float(dot[r]), set1(float_at(x.scales + x.stride * r, b))), scale, a[r]);
      if constexpr (kMinima) {
        const Floats minimum = load(w.minimum[b]);
        for (int r = 0; r < R; ++r) a[r] = fma(set1(float_at(x.sums + x.stride * r, b)), minimum, a[r]);
      }
    } else {
      // Both halves of a block share the activation's scale: (dot0 * scale0 + dot1 * scale1) * activation
      // scale.
      Ints dot[R];
      Floats part[R];
      for (int r = 0; r < R; ++r) dot[r] = kOffset ? set1(start[kOffset ? r : 0][2 * b]) : set1(0);
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        const Bytes quad = load(w.codes[8 * b + q]);
        for (int r = 0; r < R; ++r) dot[r] = dot4<kWide>(dot[r], quad, codes + x.stride * r + 4 * q);
      }
      const Floats scale0 = load(w.scale[2 * b]);
      for (int r = 0; r < R; ++r) {
        part[r] = mul(to_float(dot[r]), scale0);
        dot[r] = kOffset ? set1(start[kOffset ? r : 0][2 * b + 1]) : set1(0);
      }
#pragma GCC unroll 4
      for (int q = 4; q < 8; ++q) {
        const Bytes quad = load(w.codes[8 * b + q]);
        for (int r = 0; r < R; ++r) dot[r] = dot4<kWide>(dot[r], quad, codes + x.stride * r + 4 * q);
      }
      const Floats scale1 = load(w.scale[2 * b + 1]);
      for (int r = 0; r < R; ++r)
        a[r] = fma(fma(to_float(dot[r]), scale1, part[r]), set1(float_at(x.scales + x.stride * r, b)), a[r]);
      if constexpr (kMinima) {
        const Floats minimum0 = load(w.minimum[2 * b]), minimum1 = load(w.minimum[2 * b + 1]);
        for (int r = 0; r < R; ++r) {
          const float s = float_at(x.scales + x.stride * r, b);
          const uint8_t* sums = x.code_sums + x.stride * r + 4 * b;
          a[r] = fma(set1(s * static_cast<float>(half_at(sums, 0))), minimum0, a[r]);
          a[r] = fma(set1(s * static_cast<float>(half_at(sums, 1))), minimum1, a[r]);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) store(acc + 16 * r, a[r]);
}

// f32 weights [col][16] of P panels against f32 rows. acc: [P][acc_rows][16].
template <int R, int P>
static void f32_tile(const float* const* w, int cols, const uint8_t* x, size_t stride, float* acc,
                     int acc_rows) {
  Floats a[P][R];
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) a[p][r] = load(acc + 16 * (p * acc_rows + r));
  for (int c = 0; c < cols; ++c) {
    Floats weight[P];
    for (int p = 0; p < P; ++p) weight[p] = load(w[p] + 16 * c);
    for (int r = 0; r < R; ++r) {
      const Floats value = set1(float_at(x + stride * r, c));
      for (int p = 0; p < P; ++p) a[p][r] = fma(weight[p], value, a[p][r]);
    }
  }
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) store(acc + 16 * (p * acc_rows + r), a[p][r]);
}

// bf16 weights [col pair][16][2] of P panels against bf16 rows.
template <int R, int P>
static void bf16_tile(const uint8_t* const* w, int pairs, const uint8_t* x, size_t stride, float* acc,
                      int acc_rows) {
  Floats a[P][R];
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) a[p][r] = load(acc + 16 * (p * acc_rows + r));
  for (int c = 0; c < pairs; ++c) {
    Bytes weight[P];
    for (int p = 0; p < P; ++p) weight[p] = load(w[p] + 64 * c);
    for (int r = 0; r < R; ++r)
      for (int p = 0; p < P; ++p) a[p][r] = dot2_bf16(a[p][r], weight[p], x + stride * r + 4 * c);
  }
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) store(acc + 16 * (p * acc_rows + r), a[p][r]);
}
