// Codes of 8 bits through a codebook of 256 floats (rot:8). Included by cpu.cc inside the level's own
// namespace, after products-inl.h.
//
// A gather of 16 entries takes 16 loads. With AVX-512 the table lies in registers instead:
//
//   byte permutes (VBMI)   the four bytes of the floats apart, 256 entries each in four registers: two
//   permutes
//                          of 128 entries for 64 codes, the code's top bit chooses. Interleaving the bytes
//                          gives the floats. Cheap enough to do it between the multiply-adds of a few rows.
//   otherwise              16 registers of floats: eight permutes of 32 entries for 16 codes.
//
// Both copy the table's bits, and the products keep their order, so which one runs shows in no result. (On an
// AMD EPYC of family 26, 64 codes: gathers 60 cycles, floats 24, bytes 9.)

#if defined(__AVX512F__) && defined(__AVX512BW__)

#if defined(__AVX512VBMI__)
#define KVASIR_BYTE_PERMUTES
#else  // called where the processor has them (AttentionTile::byte_permutes)
#define KVASIR_BYTE_PERMUTES __attribute__((target("avx512vbmi")))
#endif

// The table's bytes in registers, or where the compiler puts them.
struct ByteBook {
  __m512i plane[4][4];
  HWY_INLINE explicit ByteBook(const DecodeTable& table) {
    _Pragma("GCC unroll 4") for (int b = 0; b < 4; ++b) _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i)
        plane[b][i] = _mm512_load_si512(table.value_bytes[b] + i * 64);
  }
};
struct Quad {
  __m512 at[4];
};
// Byte b of the entries of 64 codes.
template <int b>
KVASIR_BYTE_PERMUTES HWY_INLINE __m512i look_up_byte(const ByteBook& book, __m512i code, __mmask64 top) {
  return _mm512_mask_blend_epi8(top, _mm512_permutex2var_epi8(book.plane[b][0], code, book.plane[b][1]),
                                _mm512_permutex2var_epi8(book.plane[b][2], code, book.plane[b][3]));
}
// 16 lanes of four codes (a quad vector, kv/codecs/plane.h) as four vectors of 16 floats, with
// between.element <0> to <3> in the midst.
template <typename Between>
KVASIR_BYTE_PERMUTES HWY_INLINE Quad look_up_quad(const ByteBook& book, const std::byte* codes,
                                                  const Between& between) {
  // Within 16 bytes, element by element in place of lane by lane.
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m512i code = _mm512_shuffle_epi8(_mm512_loadu_si512(codes), order);
  const __mmask64 top = _mm512_movepi8_mask(code);
  __m512i byte[4];
  byte[0] = look_up_byte<0>(book, code, top);
  between.template element<0>();
  byte[1] = look_up_byte<1>(book, code, top);
  between.template element<1>();
  byte[2] = look_up_byte<2>(book, code, top);
  between.template element<2>();
  byte[3] = look_up_byte<3>(book, code, top);
  between.template element<3>();
  const __m512i low01 = _mm512_unpacklo_epi8(byte[0], byte[1]),
                low23 = _mm512_unpacklo_epi8(byte[2], byte[3]),
                high01 = _mm512_unpackhi_epi8(byte[0], byte[1]),
                high23 = _mm512_unpackhi_epi8(byte[2], byte[3]);
  return {{_mm512_castsi512_ps(_mm512_unpacklo_epi16(low01, low23)),
           _mm512_castsi512_ps(_mm512_unpackhi_epi16(low01, low23)),
           _mm512_castsi512_ps(_mm512_unpacklo_epi16(high01, high23)),
           _mm512_castsi512_ps(_mm512_unpackhi_epi16(high01, high23))}};
}
struct Nothing {
  template <int>
  HWY_INLINE void element() const {}
};

// ---- into the tile

// Where the floats of a unit (32 channels x 16 tokens) go: element c of quad vector q of unit u to u * unit +
// q / 4 * half + (q % 4 * 4 + c) * row.
struct UnitTarget {
  float* out;
  size_t unit, half, row;
  HWY_INLINE float* quad(int u, int q) const {
    return out + static_cast<size_t>(u) * unit + static_cast<size_t>(q / 4) * half +
           static_cast<size_t>(q % 4 * 4) * row;
  }
};

KVASIR_BYTE_PERMUTES void look_up_bytes(const DecodeTable& table, const std::byte* codes, int units,
                                        const UnitTarget& to) {
  const ByteBook book(table);
  for (int u = 0; u < units; ++u)
    for (int q = 0; q < 8; ++q, codes += 64) {
      const Quad x = look_up_quad(book, codes, Nothing());
      float* out = to.quad(u, q);
      _Pragma("GCC unroll 4") for (int c = 0; c < 4; ++c)
          _mm512_storeu_ps(out + static_cast<size_t>(c) * to.row, x.at[c]);
    }
}

void look_up_floats(const DecodeTable& table, const std::byte* codes, int units, const UnitTarget& to) {
  __m512 entries[16];
  _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) entries[i] = _mm512_load_ps(table.values + i * 16);
  for (int u = 0; u < units; ++u)
    for (int q = 0; q < 8; ++q, codes += 64) {
      const __m512i quad = _mm512_loadu_si512(codes);
      float* out = to.quad(u, q);
      _Pragma("GCC unroll 4") for (int c = 0; c < 4; ++c) {
        // A permute reads the lowest five bits.
        const __m512i code = _mm512_srli_epi32(quad, static_cast<unsigned>(c) * 8);
        const __mmask16 bit5 = _mm512_test_epi32_mask(code, _mm512_set1_epi32(32)),
                        bit6 = _mm512_test_epi32_mask(code, _mm512_set1_epi32(64)),
                        bit7 = _mm512_test_epi32_mask(code, _mm512_set1_epi32(128));
        __m512 x[8];
        _Pragma("GCC unroll 8") for (int i = 0; i < 8; ++i) x[i] =
            _mm512_permutex2var_ps(entries[2 * i], code, entries[2 * i + 1]);
        _Pragma("GCC unroll 4") for (int i = 0; i < 8; i += 2) x[i] =
            _mm512_mask_blend_ps(bit5, x[i], x[i + 1]);
        x[0] = _mm512_mask_blend_ps(bit6, x[0], x[2]);
        x[4] = _mm512_mask_blend_ps(bit6, x[4], x[6]);
        _mm512_storeu_ps(out + static_cast<size_t>(c) * to.row, _mm512_mask_blend_ps(bit7, x[0], x[4]));
      }
    }
}

void look_up(const DecodeTable& table, bool byte_permutes, const std::byte* codes, int units,
             const UnitTarget& to) {
  if (byte_permutes) return look_up_bytes(table, codes, units, to);
  look_up_floats(table, codes, units, to);
}

// ---- between the multiply-adds (Operand::book): the order of Operand::f32, four elements a step

// acc + broadcast(a[c]) * b. In assembly because GCC 12 keeps the broadcasts, or the address of each element,
// in registers of their own, and then the table on the stack.
template <int c>
HWY_INLINE void add_broadcast_product(__m512& acc, const float* a, const __m512& b) {
  asm("vfmadd231ps %c3(%2)%{1to16%}, %1, %0"
      : "+v"(acc)
      : "v"(b), "r"(a), "i"(c * 4), "m"(*reinterpret_cast<const float(*)[4]>(a)));
}

// The multiply-adds of a quad, of MR rows: element c.
template <int MR>
struct QuadProduct {
  __m512 (&acc)[MR];
  const Quad& right;
  const float* const (&left)[MR];
  template <int c>
  HWY_INLINE void element() const {
    _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m)
        add_broadcast_product<c>(acc[m], left[m], right.at[c]);
  }
};

// Sums of MR rows and NR vectors. While one quad is multiplied the next one is looked up: one after the other
// they take a fifth longer.
template <int MR, int NR>
struct BookSums {
  __m512 at[NR][MR];
  HWY_INLINE void clear() {
    _Pragma("GCC unroll 2") for (int n = 0; n < NR; ++n) _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m)
        at[n][m] = _mm512_setzero_ps();
  }
  // `quad` is right[0]'s; it becomes next[0]'s, where the next step begins.
  KVASIR_BYTE_PERMUTES HWY_INLINE void step(const ByteBook& book, Quad& quad, const float* (&left)[MR],
                                            const std::byte* const (&right)[NR], const std::byte* next) {
    _Pragma("GCC unroll 2") for (int n = 0; n < NR; ++n) {
      const Quad current = quad;
      quad = look_up_quad(book, n + 1 < NR ? right[n + 1] : next, QuadProduct<MR>{at[n], current, left});
    }
    _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m) left[m] += 4;
  }
  HWY_INLINE V16 sum(int m, int n) const {
    V16 out;
    out.part[0].raw = at[n][m];
    return out;
  }
};

template <int MR, int NR>
KVASIR_BYTE_PERMUTES void book_scores(const ScoreTask& t) {
  const std::byte* right[NR];
  _Pragma("GCC unroll 2") for (int n = 0; n < NR; ++n) right[n] = t.keys[n];
  const float* left[MR];
  _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m) left[m] =
      reinterpret_cast<const float*>(t.queries + static_cast<size_t>(m) * t.query_stride);
  const ByteBook book(*t.table);
  // The last step looks 64 bytes up that lie behind the codes: scales, in the same block.
  Quad quad = look_up_quad(book, right[0], Nothing());
  for (int g = 0; g < t.groups; ++g) {
    BookSums<MR, NR> sums;
    sums.clear();
    for (int k = 0; k < t.group_steps; ++k) {
      sums.step(book, quad, left, right, right[0] + 64);
      _Pragma("GCC unroll 2") for (int n = 0; n < NR; ++n) right[n] += 64;
    }
    t.fetch->advance(t.group_steps * t.fetch->key_rate);
    _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m)
        _Pragma("GCC unroll 2") for (int n = 0; n < NR; ++n) {
      float* out = t.scores + m * kSegmentKeys + t.columns[n];
      store(fma(sums.sum(m, n), load(t.scales + g * kSegmentKeys + t.columns[n]),
                g == 0 ? set(0.0f) : load(out)),
            out);
    }
  }
}

template <int MR>
KVASIR_BYTE_PERMUTES void book_values(const ValueTask& t) {
  const ByteBook book(*t.table);
  BookSums<MR, 2> sums;
  sums.clear();
  Quad quad = look_up_quad(book, t.values[0], Nothing());
  for (int b = 0; b < t.blocks; ++b) {
    const float* left[MR];
    _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m) left[m] =
        reinterpret_cast<const float*>(t.weights + static_cast<size_t>(m) * t.weight_stride) + t.columns[b];
    const std::byte* right[2] = {t.values[b], t.values[b] + 256};
    const std::byte* const after = t.values[b + 1 < t.blocks ? b + 1 : b];
    _Pragma("GCC unroll 4") for (int k = 0; k < kBlockTokens / 4; ++k) {
      sums.step(book, quad, left, right, k + 1 < kBlockTokens / 4 ? right[0] + 64 : after);
      right[0] += 64;
      right[1] += 64;
    }
    t.fetch->advance(kBlockTokens / 4 * t.fetch->value_rate);
  }
  _Pragma("GCC unroll 8") for (int m = 0; m < MR; ++m) {
    const V16 bias = set(t.bias[m]), keep = set(t.keep[m]), take = set(t.take[m]);
    _Pragma("GCC unroll 2") for (int n = 0; n < 2; ++n) {
      float* out = t.out + static_cast<size_t>(m) * t.out_stride + n * 16;
      store(fma(load(out), keep, mul(add(sums.sum(m, n), bias), take)), out);
    }
  }
}

template <int MR>
void book_score_rows(int vectors, const ScoreTask& t) {
  return vectors == 2 ? book_scores<MR, 2>(t) : book_scores<MR, 1>(t);
}
void book_score_tile(int rows, int vectors, const ScoreTask& t) {
  switch (rows) {
    case 1:
      return book_score_rows<1>(vectors, t);
    case 2:
      return book_score_rows<2>(vectors, t);
    case 3:
      return book_score_rows<3>(vectors, t);
    case 4:
      return book_score_rows<4>(vectors, t);
    case 5:
      return book_score_rows<5>(vectors, t);
    default:
      return book_score_rows<6>(vectors, t);
  }
}
void book_value_tile(int rows, const ValueTask& t) {
  switch (rows) {
    case 1:
      return book_values<1>(t);
    case 2:
      return book_values<2>(t);
    case 3:
      return book_values<3>(t);
    case 4:
      return book_values<4>(t);
    case 5:
      return book_values<5>(t);
    default:
      return book_values<6>(t);
  }
}
#undef KVASIR_BYTE_PERMUTES

#else  // kHasPermutes is false: never called

struct UnitTarget {
  float* out;
  size_t unit, half, row;
};
void look_up(const DecodeTable&, bool, const std::byte*, int, const UnitTarget&) {}
void book_score_tile(int, int, const ScoreTask&) {}
void book_value_tile(int, const ValueTask&) {}

#endif
