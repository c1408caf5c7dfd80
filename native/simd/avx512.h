// F32 as one 512-bit register. Included by vec.h.
#pragma once

namespace quire::QUIRE_ISA {

struct F32 {
  static constexpr int lanes = 16;
  __m512 v;
};
using Mask = __mmask16;

inline F32 zero() { return {_mm512_setzero_ps()}; }
inline F32 set1(float x) { return {_mm512_set1_ps(x)}; }
inline Mask first(int n) { return static_cast<Mask>((1u << n) - 1); }

inline F32 from_bf16(__m256i bits) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F32 load(const BF16* p) {
  return from_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline F32 load(const F16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// Of 32 consecutive bfloat16 the 16 with even index, and the 16 with odd index.
inline F32 load_even(const BF16* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
inline F32 load_odd(const BF16* p) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(-65536)))};
}
// The even and the odd one of two bfloat16, in every lane.
inline F32 set1_even(const BF16* pair) {
  int32_t bits;
  std::memcpy(&bits, pair, sizeof(bits));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_set1_epi32(bits), 16))};
}
inline F32 set1_odd(const BF16* pair) {
  int32_t bits;
  std::memcpy(&bits, pair, sizeof(bits));
  const __m512i both = _mm512_set1_epi32(bits);
  return {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-65536)))};
}
inline F32 load_partial(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
inline F32 load_partial(const BF16* p, int n) {
  return from_bf16(_mm256_maskz_loadu_epi16(first(n), p));
}
inline F32 load_partial(const F16* p, int n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p))};
}

// Round to nearest even; NaN stays NaN. By integer arithmetic, so that all of AVX-512 agree
// on denormals, which vcvtneps2bf16 flushes.
inline __m256i to_bf16(F32 x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}
inline __m256i to_f16(F32 x) {
  return _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline void store(float* p, F32 x) { _mm512_storeu_ps(p, x.v); }
inline void store(BF16* p, F32 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(x));
}
inline void store(F16* p, F32 x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_f16(x)); }
inline void store_partial(float* p, F32 x, int n) { _mm512_mask_storeu_ps(p, first(n), x.v); }
inline void store_partial(BF16* p, F32 x, int n) {
  _mm256_mask_storeu_epi16(p, first(n), to_bf16(x));
}
inline void store_partial(F16* p, F32 x, int n) {
  _mm256_mask_storeu_epi16(p, first(n), to_f16(x));
}

inline F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32 abs(F32 a) { return {_mm512_abs_ps(a.v)}; }
inline F32 sqrt(F32 a) { return {_mm512_sqrt_ps(a.v)}; }
inline F32 round(F32 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a * 2^n for whole n of any size, rounded once.
inline F32 scale_by_power(F32 a, F32 n) { return {_mm512_scalef_ps(a.v, n.v)}; }

inline Mask less(F32 a, F32 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
inline bool any(Mask m) { return m != 0; }
inline uint32_t bits(Mask m) { return m; }
// In registers: storing through a mask is slow on some processors.
inline int store_where(float* p, Mask m, F32 x) {
  _mm512_storeu_ps(p, _mm512_maskz_compress_ps(m, x.v));
  return __builtin_popcount(m);
}
inline F32 select(Mask m, F32 a, F32 b) { return {_mm512_mask_blend_ps(m, b.v, a.v)}; }

inline __m256 low_half(F32 a) { return _mm512_castps512_ps256(a.v); }
inline __m256 high_half(F32 a) { return _mm512_extractf32x8_ps(a.v, 1); }
inline float sum(F32 a) {
  const __m256 x8 = _mm256_add_ps(low_half(a), high_half(a));
  const __m128 x4 = _mm_add_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  const __m128 x2 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_add_ss(x2, _mm_movehdup_ps(x2)));
}
inline float max(F32 a) {
  const __m256 x8 = _mm256_max_ps(low_half(a), high_half(a));
  const __m128 x4 = _mm_max_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  const __m128 x2 = _mm_max_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_max_ss(x2, _mm_movehdup_ps(x2)));
}

// Words of row i to column i.
inline void transpose(const uint32_t* from, int64_t from_stride, uint32_t* to, int64_t to_stride) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(from + i * from_stride);
  for (int i = 0; i < 16; i += 2) {  // pairs of rows, words side by side
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)  // 4 rows: column c, c + 4, c + 8, c + 12 in a[i + c]
    for (int half = 0; half < 2; ++half) {
      a[i + 2 * half] = _mm512_unpacklo_epi64(b[i + half], b[i + 2 + half]);
      a[i + 2 * half + 1] = _mm512_unpackhi_epi64(b[i + half], b[i + 2 + half]);
    }
  for (int c = 0; c < 4; ++c)  // 8 rows
    for (int i = 0; i < 16; i += 8) {
      b[i + c] = _mm512_shuffle_i32x4(a[i + c], a[i + 4 + c], 0x88);
      b[i + 4 + c] = _mm512_shuffle_i32x4(a[i + c], a[i + 4 + c], 0xdd);
    }
  for (int c = 0; c < 8; ++c) {
    const __m512i even = _mm512_shuffle_i32x4(b[c], b[8 + c], 0x88);
    const __m512i odd = _mm512_shuffle_i32x4(b[c], b[8 + c], 0xdd);
    _mm512_storeu_si512(to + c * to_stride, even);
    _mm512_storeu_si512(to + (c + 8) * to_stride, odd);
  }
}

}  // namespace quire::QUIRE_ISA
