// The micro-kernels: R input rows against one or more panels over one chunk. Sums rest in `acc` between
// chunks (between blocks, where registers are wanted for other things); storing an f32 and loading it again
// changes nothing, so neither R nor the number of panels, nor how rows are grouped, shows in the bits.
// Included inside the per-level namespace.

struct Int8Row {
  const uint8_t* codes;      // of the first row at this chunk's first column
  const uint8_t* scales;     // f32 per block
  const uint8_t* sums;       // f32 per block: scale * sum of codes
  const uint8_t* code_sums;  // i16 per 16 columns
  size_t stride;

  KVASIR_INLINE void advance(int rows) {
    const size_t skip = stride * static_cast<size_t>(rows);
    codes += skip;
    scales += skip;
    sums += skip;
    code_sums += skip;
  }
};

KVASIR_INLINE float float_at(const uint8_t* p, size_t index) {
  float value;
  __builtin_memcpy(&value, p + 4 * index, 4);
  return value;
}

// What a tile needs of its R rows over one chunk besides their codes, gathered so that the inner loops
// address it by constants: scales, scaled sums, and the sums that dot products start from (-offset * sum of
// codes).
template <int R, int kSub, bool kMinima, bool kOffset>
struct RowFacts {
  alignas(32) float scale[R][8];
  alignas(32) float sum[kMinima ? R : 1][kSub == 16 ? 16 : 8];
  alignas(32) int32_t start[kOffset ? R : 1][kSub == 16 ? 16 : 8];

  KVASIR_INLINE void gather(const Int8Row& x, int offset) {
    for (int r = 0; r < R; ++r) {
      const size_t at = x.stride * static_cast<size_t>(r);
      __builtin_memcpy(scale[r], x.scales + at, 32);
      const uint8_t* code_sums = x.code_sums + at;
      if constexpr (kOffset) {
        if constexpr (kSub == 16) {
          start_sums_16(start[r], code_sums, -offset);
        } else {
          start_sums_32(start[r], code_sums, -offset);
        }
      }
      if constexpr (kMinima) {
        if constexpr (kSub == 16) {
          scaled_sums_16(sum[r], scale[r], code_sums);
        } else {
          __builtin_memcpy(sum[r], x.sums + at, 32);
        }
      }
    }
  }
};

// Two codings of one sum: with 32 columns under a scale,  acc += (dot * activation scale) * scale;  with 16,
// acc += (dot0 * scale0 + dot1 * scale1) * activation scale;  then minima times sums, in order of columns.
template <int kSub>
KVASIR_INLINE Floats add_block(Floats acc, Ints dot0, Ints dot1, Floats scale0, Floats scale1,
                               float activation_scale) {
  if constexpr (kSub == 32) {
    return fma(mul(to_float(dot0), set1(activation_scale)), scale0, acc);
  } else {
    return fma(fma(to_float(dot1), scale1, mul(to_float(dot0), scale0)), set1(activation_scale), acc);
  }
}

// Packed lines that are requested while a chunk is multiplied: `lines` of each of two panels a block, so that
// they do not come in bursts.
struct Ahead {
  const uint8_t* at[2];
  size_t jump;           // what is added to `at` after `until_jump` lines
  ptrdiff_t nearer = 0;  // from `at` to lines that are requested again, into the first-level cache; 0: at
                         // once into it
  int until_jump;
  int left = 0;
  int lines;

  KVASIR_INLINE void request_some() {
    const int count = left < lines ? left : lines;
    left -= count;
    for (int i = 0; i < count; ++i) {
      if (until_jump-- == 0) {
        at[0] += jump;
        at[1] += jump;
        nearer -= nearer == 0 ? 0 : static_cast<ptrdiff_t>(jump);
      }
      for (int p = 0; p < 2; ++p) {
        if (nearer == 0) {
          __builtin_prefetch(at[p], 0, 3);
        } else {
          __builtin_prefetch(at[p], 0, 2);
          __builtin_prefetch(at[p] + nearer, 0, 3);
        }
        at[p] += 64;
      }
    }
  }
};

template <int R, int P, class Start>
KVASIR_INLINE void start_sums(Ints (&dot)[P][R], const Start& start) {
  for (int r = 0; r < R; ++r) {
    const Ints first = start(r);
    for (int p = 0; p < P; ++p) dot[p][r] = first;
  }
}
// Quads q and q + 4 of block b of a chunk: with kBits = 0 from its unpacked codes, else from its packed
// lines, taken apart in registers (and looked up in kTable).
template <int q, int kBits, Table kTable>
KVASIR_INLINE void load_pair(const CodeChunk& w, const uint8_t* packed, Bytes table, int b, Bytes& low,
                             Bytes& high) {
  if constexpr (kBits == 0) {
    low = load(w.codes[8 * b + q]);
    high = load(w.codes[8 * b + q + 4]);
  } else {
    block_pair<kBits, q>(packed + 64 * kBits * static_cast<ptrdiff_t>(b), low, high);
    if constexpr (kTable != Table::none) {
      low = look_up(table, low);
      high = look_up(table, high);
    }
  }
}

// Adds the products of quads q and q + 4 of block b. They come in pairs because a packed line of 4-bit codes
// holds both.
template <int q, int kBits, Table kTable, int R, int P, bool kWide>
KVASIR_INLINE void add_pair(Ints (&dot)[P][R], const CodeChunk* w, const uint8_t* const* packed, Bytes table,
                            int b, const uint8_t* const (&rows)[R]) {
  Bytes low[P], high[P];
  for (int p = 0; p < P; ++p) load_pair<q, kBits, kTable>(w[p], packed[p], table, b, low[p], high[p]);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const uint8_t* codes = rows[r] + kBlockCols * b + 4 * q;
    const Quad first = load_quad(codes), second = load_quad(codes + 16);
    for (int p = 0; p < P; ++p) dot[p][r] = dot4<kWide>(dot[p][r], low[p], first);
    for (int p = 0; p < P; ++p) dot[p][r] = dot4<kWide>(dot[p][r], high[p], second);
  }
}
// Adds the products of kCount quads, beginning at quad `quad` of the chunks and column `col` of the rows.
template <int kCount, int R, int P, bool kWide>
KVASIR_INLINE void add_quads(Ints (&dot)[P][R], const CodeChunk* w, int quad, const uint8_t* const (&rows)[R],
                             int col) {
#pragma GCC unroll 8
  for (int q = 0; q < kCount; ++q) {
    Bytes codes[P];
    for (int p = 0; p < P; ++p) codes[p] = load(w[p].codes[quad + q]);
    for (int r = 0; r < R; ++r) {
      const Quad activations = load_quad(rows[r] + col + 4 * q);
      for (int p = 0; p < P; ++p) dot[p][r] = dot4<kWide>(dot[p][r], codes[p], activations);
    }
  }
}

// A chunk of P panels: its scales in w, its codes there too, or with kBits (32 columns a scale only) packed
// at packed[p]. kSub: columns under one weight scale, 16 or 32. `offset` is subtracted from every code. acc:
// [P][acc_rows][16]. The float sums stay in the first-level cache, where a block loads and
// stores them once: registers hold nothing but the integer sums, so that more of them are in flight than the
// dot product's latency asks for.
template <int R, int P, int kSub, bool kMinima, bool kWide, int kBits, Table kTable>
static void int8_tile(const CodeChunk* w, const uint8_t* const* packed, int blocks, const Int8Row& x,
                      int offset, float* acc, int acc_rows, Ahead& ahead) {
  constexpr bool kOffset = !kMinima || (kWide && kSignedWide);
  RowFacts<R, kSub, kMinima, kOffset> facts;
  facts.gather(x, offset);
  const uint8_t* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = x.codes + x.stride * static_cast<size_t>(r);
  const Bytes table = look_up_table<kTable>();
  for (int b = 0; b < blocks; ++b) {
    ahead.request_some();
    Ints dot[P][R];
    if constexpr (kSub == 32) {
      start_sums<R, P>(dot, [&](int r) { return kOffset ? set1(facts.start[kOffset ? r : 0][b]) : set1(0); });
      add_pair<0, kBits, kTable, R, P, kWide>(dot, w, packed, table, b, rows);
      add_pair<1, kBits, kTable, R, P, kWide>(dot, w, packed, table, b, rows);
      add_pair<2, kBits, kTable, R, P, kWide>(dot, w, packed, table, b, rows);
      add_pair<3, kBits, kTable, R, P, kWide>(dot, w, packed, table, b, rows);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Floats row_scale = set1(facts.scale[r][b]);
        for (int p = 0; p < P; ++p) {
          float* at = acc + 16 * (p * acc_rows + r);
          Floats sum = fma(mul(to_float(dot[p][r]), row_scale), load(w[p].scale[b]), load(at));
          if constexpr (kMinima) sum = fma(set1(facts.sum[r][b]), load(w[p].minimum[b]), sum);
          store(at, sum);
        }
      }
    } else {
      Floats part[P][R];
      start_sums<R, P>(dot,
                       [&](int r) { return kOffset ? set1(facts.start[kOffset ? r : 0][2 * b]) : set1(0); });
      add_quads<4, R, P, kWide>(dot, w, 8 * b, rows, kBlockCols * b);
      for (int p = 0; p < P; ++p) {
        const Floats scale = load(w[p].scale[2 * b]);
        for (int r = 0; r < R; ++r) part[p][r] = mul(to_float(dot[p][r]), scale);
      }
      start_sums<R, P>(
          dot, [&](int r) { return kOffset ? set1(facts.start[kOffset ? r : 0][2 * b + 1]) : set1(0); });
      add_quads<4, R, P, kWide>(dot, w, 8 * b + 4, rows, kBlockCols * b + 16);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Floats row_scale = set1(facts.scale[r][b]);
        for (int p = 0; p < P; ++p) {
          float* at = acc + 16 * (p * acc_rows + r);
          Floats sum =
              fma(fma(to_float(dot[p][r]), load(w[p].scale[2 * b + 1]), part[p][r]), row_scale, load(at));
          if constexpr (kMinima) {
            sum = fma(set1(facts.sum[r][2 * b]), load(w[p].minimum[2 * b]), sum);
            sum = fma(set1(facts.sum[r][2 * b + 1]), load(w[p].minimum[2 * b + 1]), sum);
          }
          store(at, sum);
        }
      }
    }
  }
}

// Where a chunk's scales are f16, one a group of `1 << shift` blocks, and its minima, if any, in the same
// form behind them: they are read as they are. Null: they have been unpacked.
struct HalfScales {
  const uint8_t* scales = nullptr;
  const uint8_t* minima = nullptr;
  int shift = 0;
};

// The same sums for few rows: codes go from the packed block `p` straight into registers; only scales are
// unpacked (in `w`) where `halves` has none. `ahead`: lines so many bytes further on are requested;
// kInTwoSteps: as request() does; 0: a tile before this one, which has been through the block, did.
constexpr ptrdiff_t kInTwoSteps = -1;
template <int R, int kBits, Table kTable, int kSub, bool kMinima, bool kWide>
static void int8_direct(const uint8_t* p, ptrdiff_t ahead, const CodeChunk& w, const HalfScales& halves,
                        int blocks, const Int8Row& x, int offset, float* acc) {
  constexpr bool kOffset = !kMinima || (kWide && kSignedWide);
  RowFacts<R, kSub, kMinima, kOffset> facts;
  facts.gather(x, offset);
  Floats a[R];
  for (int r = 0; r < R; ++r) a[r] = load(acc + 16 * r);
  const Bytes table = look_up_table<kTable>();
  const uint8_t* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = x.codes + x.stride * static_cast<size_t>(r);
  const uint8_t *const half_scales = halves.scales, *const half_minima = halves.minima;
  const int shift = halves.shift;
  for (int b = 0; b < blocks; ++b, p += 64 * kBits) {
    if (ahead > 0) {
      for (int i = 0; i < kBits; ++i) __builtin_prefetch(p + 64 * i + ahead, 0, 3);
    } else if (ahead == kInTwoSteps) {
      for (int i = 0; i < kBits; ++i) request(p + 64 * i);
    }
    Bytes quads[8];
    block_quads<kBits>(p, quads);
    if constexpr (kTable != Table::none)
      for (int q = 0; q < 8; ++q) quads[q] = look_up(table, quads[q]);
    if constexpr (kWide && kSignedWide)
      for (int q = 0; q < 8; ++q) quads[q] = bit_xor(quads[q], set1_byte(0x80));
    // Two sums of four quads each, in either coding: integers add up the same, and the chains are shorter.
    Ints dot[2][R];
    for (int r = 0; r < R; ++r) {
      if constexpr (kSub == 32) {
        dot[0][r] = kOffset ? set1(facts.start[kOffset ? r : 0][b]) : set1(0);
        dot[1][r] = set1(0);
      } else {
        dot[0][r] = kOffset ? set1(facts.start[kOffset ? r : 0][2 * b]) : set1(0);
        dot[1][r] = kOffset ? set1(facts.start[kOffset ? r : 0][2 * b + 1]) : set1(0);
      }
    }
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q)
      for (int r = 0; r < R; ++r) {
        const uint8_t* codes = rows[r] + kBlockCols * b + 4 * q;
        dot[0][r] = dot4<kWide>(dot[0][r], quads[q], load_quad(codes));
        dot[R <= 4 || kSub == 16 ? 1 : 0][r] =
            dot4<kWide>(dot[R <= 4 || kSub == 16 ? 1 : 0][r], quads[q + 4], load_quad(codes + 16));
      }
    if constexpr (kSub == 32) {
      const ptrdiff_t half = 32 * static_cast<ptrdiff_t>(b >> shift);
      const Floats scale = half_scales != nullptr ? load_f16x16(half_scales + half) : load(w.scale[b]);
      for (int r = 0; r < R; ++r) {
        const Ints both = R <= 4 ? add(dot[0][r], dot[1][r]) : dot[0][r];
        a[r] = add_block<32>(a[r], both, both, scale, scale, facts.scale[r][b]);
      }
      if constexpr (kMinima) {
        const Floats minimum = half_scales != nullptr ? load_f16x16(half_minima + half) : load(w.minimum[b]);
        for (int r = 0; r < R; ++r) a[r] = fma(set1(facts.sum[r][b]), minimum, a[r]);
      }
    } else {
      const Floats scale0 = load(w.scale[2 * b]), scale1 = load(w.scale[2 * b + 1]);
      for (int r = 0; r < R; ++r)
        a[r] = add_block<16>(a[r], dot[0][r], dot[1][r], scale0, scale1, facts.scale[r][b]);
      if constexpr (kMinima) {
        const Floats minimum0 = load(w.minimum[2 * b]), minimum1 = load(w.minimum[2 * b + 1]);
        for (int r = 0; r < R; ++r) {
          a[r] = fma(set1(facts.sum[r][2 * b]), minimum0, a[r]);
          a[r] = fma(set1(facts.sum[r][2 * b + 1]), minimum1, a[r]);
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

// bf16 weights [col pair][16][2] of P panels against bf16 rows. `requests`: few rows ask for lines ahead;
// kNext: the lines at `next` are asked for as these are read. acc: [P][acc_rows][16].
template <int R, int P, bool kNext>
static void bf16_tile(const uint8_t* const* w, int pairs, const uint8_t* x, size_t stride, float* acc,
                      int acc_rows, bool requests, const uint8_t* const* next) {
  Floats a[P][R];
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) a[p][r] = load(acc + 16 * (p * acc_rows + r));
  for (int c = 0; c < pairs; ++c) {
    Bytes weight[P];
    for (int p = 0; p < P; ++p) {
      weight[p] = load(w[p] + 64 * c);
      if (R <= 4 && requests) request(w[p] + 64 * c);
      if constexpr (kNext) __builtin_prefetch(next[p] + 64 * c, 0, 3);
    }
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, x + stride * r + 4 * c, 4);
      for (int p = 0; p < P; ++p) a[p][r] = dot2_bf16(a[p][r], weight[p], pair);
    }
  }
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) store(acc + 16 * (p * acc_rows + r), a[p][r]);
}
