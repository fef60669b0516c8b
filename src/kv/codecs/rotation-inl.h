// The rotation of kv-cache.md 3.3 on one vector, in f32 and in the order that fixes its bits: butterflies of
// stride 1, 2, 4, ..., the last stage times f32(1 / sqrt(dim)). Included inside a namespace of its own.

// out = R x. x and out may be the same array.
static inline void hadamard(float* y, int dim) {
  for (int h = 1; h < dim; h *= 2) {
    for (int i = 0; i < dim; i += 2 * h) {
      for (int j = i; j < i + h; ++j) {
        const float a = y[j], b = y[j + h];
        y[j] = a + b;
        y[j + h] = a - b;
      }
    }
  }
  const float scale = dim == 64    ? 0.125f
                      : dim == 128 ? 0x1.6a09e6p-4f
                      : dim == 256 ? 0.0625f
                                   : 0x1.6a09e6p-5f;
  for (int i = 0; i < dim; ++i) y[i] *= scale;
}
static inline void apply_signs(const float* x, const uint64_t* signs, float* y, int dim) {
  for (int i = 0; i < dim; ++i) y[i] = (signs[i / 64] >> (i % 64)) & 1u ? -x[i] : x[i];
}
static inline void rotate(const float* x, const uint64_t* signs, float* out, int dim) {
  apply_signs(x, signs, out, dim);
  hadamard(out, dim);
}
// out = R^-1 y.
static inline void unrotate(float* y, const uint64_t* signs, int dim) {
  hadamard(y, dim);
  apply_signs(y, signs, y, dim);
}
