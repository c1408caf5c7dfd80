// F32 as one 256-bit register. Included by vec.h.
#pragma once

namespace quire::QUIRE_ISA {

struct F32 {
  static constexpr int lanes = 8;
  __m256 v;
};
struct Mask {
  __m256 v;
};

inline F32 zero() { return {_mm256_setzero_ps()}; }
inline F32 set1(float x) { return {_mm256_set1_ps(x)}; }
inline __m256i first(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline F32 from_bf16(__m128i bits) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
}
// The first n 16-bit elements at p; memory past them is not touched.
inline __m128i load_partial_16(const void* p, int n) {
  alignas(16) uint16_t bits[8] = {};
  std::memcpy(bits, p, static_cast<size_t>(n) * 2);
  return _mm_load_si128(reinterpret_cast<const __m128i*>(bits));
}
inline F32 load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline F32 load(const BF16* p) {
  return from_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline F32 load(const F16* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
// Of 16 consecutive bfloat16 the 8 with even index, and the 8 with odd index.
inline F32 load_even(const BF16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16))};
}
inline F32 load_odd(const BF16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(-65536)))};
}
inline F32 load_partial(const float* p, int n) { return {_mm256_maskload_ps(p, first(n))}; }
inline F32 load_partial(const BF16* p, int n) { return from_bf16(load_partial_16(p, n)); }
inline F32 load_partial(const F16* p, int n) { return {_mm256_cvtph_ps(load_partial_16(p, n))}; }

// Round to nearest even; NaN stays NaN.
inline __m128i to_bf16(F32 x) {
  const __m256i bits = _mm256_castps_si256(x.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q));
  const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
}
inline __m128i to_f16(F32 x) {
  return _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline void store_partial_16(void* p, __m128i x, int n) {
  alignas(16) uint16_t bits[8];
  _mm_store_si128(reinterpret_cast<__m128i*>(bits), x);
  std::memcpy(p, bits, static_cast<size_t>(n) * 2);
}
inline void store(float* p, F32 x) { _mm256_storeu_ps(p, x.v); }
inline void store(BF16* p, F32 x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bf16(x)); }
inline void store(F16* p, F32 x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_f16(x)); }
inline void store_partial(float* p, F32 x, int n) { _mm256_maskstore_ps(p, first(n), x.v); }
inline void store_partial(BF16* p, F32 x, int n) { store_partial_16(p, to_bf16(x), n); }
inline void store_partial(F16* p, F32 x, int n) { store_partial_16(p, to_f16(x), n); }

inline F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F32 abs(F32 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline F32 sqrt(F32 a) { return {_mm256_sqrt_ps(a.v)}; }
inline F32 round(F32 a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a * 2^n for whole |n| < 250, in two factors so that each is a normal float.
inline F32 scale_by_power(F32 a, F32 n) {
  const __m256i whole = _mm256_cvtps_epi32(n.v);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const auto power = [](__m256i k) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k, _mm256_set1_epi32(127)), 23));
  };
  return {_mm256_mul_ps(_mm256_mul_ps(a.v, power(half)), power(_mm256_sub_epi32(whole, half)))};
}

inline Mask less(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
inline bool any(Mask m) { return _mm256_movemask_ps(m.v) != 0; }
inline uint32_t bits(Mask m) { return static_cast<uint32_t>(_mm256_movemask_ps(m.v)); }
inline int store_where(float* p, Mask m, F32 x) {
  float lanes[F32::lanes];
  store(lanes, x);
  int n = 0;
  for (uint32_t rest = bits(m); rest != 0; rest &= rest - 1) p[n++] = lanes[__builtin_ctz(rest)];
  return n;
}
inline F32 select(Mask m, F32 a, F32 b) { return {_mm256_blendv_ps(b.v, a.v, m.v)}; }

inline float sum(F32 a) {
  const __m128 x4 = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 x2 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_add_ss(x2, _mm_movehdup_ps(x2)));
}
inline float max(F32 a) {
  const __m128 x4 = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 x2 = _mm_max_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_max_ss(x2, _mm_movehdup_ps(x2)));
}

// Words of row i to column i.
inline void transpose(const uint32_t* from, int64_t from_stride, uint32_t* to, int64_t to_stride) {
  __m256i a[8], b[8];
  for (int i = 0; i < 8; ++i)
    a[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i * from_stride));
  for (int i = 0; i < 8; i += 2) {  // pairs of rows, words side by side
    b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)  // 4 rows: columns c and c + 4 in a[i + c]
    for (int half = 0; half < 2; ++half) {
      a[i + 2 * half] = _mm256_unpacklo_epi64(b[i + half], b[i + 2 + half]);
      a[i + 2 * half + 1] = _mm256_unpackhi_epi64(b[i + half], b[i + 2 + half]);
    }
  for (int c = 0; c < 4; ++c) {
    const __m256i low = _mm256_permute2x128_si256(a[c], a[4 + c], 0x20);
    const __m256i high = _mm256_permute2x128_si256(a[c], a[4 + c], 0x31);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + c * to_stride), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + (c + 4) * to_stride), high);
  }
}

}  // namespace quire::QUIRE_ISA
