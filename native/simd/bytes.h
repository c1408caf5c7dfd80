// Elements of one byte, E4M3 and int8_t, on the registers of avx512.h and avx2.h. Included by
// vec.h.
//
// An E4M3 is read as a float16 of its sign, three bits of zeros and its other seven bits, which is
// value / e4m3_unit: exact, denormals too.
#pragma once

namespace quire::QUIRE_ISA {

#if defined(__AVX512F__)

inline F32 from_e4m3(__m128i codes) {
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
  const __m256i half = _mm256_and_si256(wide, _mm256_set1_epi16(static_cast<short>(0xbfff)));
  // 0x3f80 + 0x80 alone reaches bit 14, which makes the exponent that of NaN.
  const __m256i carried = _mm256_add_epi16(half, _mm256_set1_epi16(0x80));
  const __m256i bit = _mm256_set1_epi16(0x4000);
  return {_mm512_cvtph_ps(_mm256_ternarylogic_epi64(half, carried, bit, 0xf8))};
}
inline F32 load(const E4M3* p) {
  return from_e4m3(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline F32 load_partial(const E4M3* p, int n) {
  return from_e4m3(_mm_maskz_loadu_epi8(first(n), p));
}
inline F32 load(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
inline F32 load_partial(const int8_t* p, int n) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first(n), p)))};
}

inline __m128i to_e4m3(F32 x) {
  const __m512i bits = _mm512_castps_si512(x.v), sign = _mm512_srli_epi32(bits, 31);
  const __m512 magnitude = _mm512_min_ps(_mm512_abs_ps(x.v), _mm512_set1_ps(e4m3_highest));
  const __m512i whole = _mm512_castps_si512(magnitude);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(whole, 20), _mm512_set1_epi32(1));
  const __m512i biased = _mm512_add_epi32(whole, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff)));
  const __m512i normal = _mm512_sub_epi32(_mm512_srli_epi32(biased, 20), _mm512_set1_epi32(960));
  // Below 2^-6 a step is 2^-9: adding 2^14 leaves the number of steps in the last bits.
  const __m512 steps = _mm512_add_ps(magnitude, _mm512_set1_ps(16384.0f));
  const __m512i tiny = _mm512_sub_epi32(_mm512_castps_si512(steps), _mm512_set1_epi32(0x46800000));
  const __mmask16 small = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(0.015625f), _CMP_LT_OQ);
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  __m512i code = _mm512_mask_mov_epi32(normal, small, tiny);
  code = _mm512_or_si512(code, _mm512_slli_epi32(sign, 7));
  return _mm512_cvtepi32_epi8(_mm512_mask_mov_epi32(code, nan, _mm512_set1_epi32(0x7f)));
}
inline void store(E4M3* p, F32 x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_e4m3(x)); }
inline void store_partial(E4M3* p, F32 x, int n) { _mm_mask_storeu_epi8(p, first(n), to_e4m3(x)); }
inline __m128i to_int8(F32 x) { return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x.v)); }
inline void store(int8_t* p, F32 x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_int8(x)); }
inline void store_partial(int8_t* p, F32 x, int n) {
  _mm_mask_storeu_epi8(p, first(n), to_int8(x));
}

#elif defined(__AVX2__)

inline __m128i load_bytes(const void* p, int n) {
  int64_t bytes = 0;
  std::memcpy(&bytes, p, static_cast<size_t>(n));
  return _mm_cvtsi64_si128(bytes);
}
inline void store_bytes(void* p, __m128i x, int n) {
  const int64_t bytes = _mm_cvtsi128_si64(x);
  std::memcpy(p, &bytes, static_cast<size_t>(n));
}
inline F32 from_e4m3(__m128i codes) {
  const __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(codes), 7);
  const __m128i half = _mm_and_si128(wide, _mm_set1_epi16(static_cast<short>(0xbfff)));
  // 0x3f80 + 0x80 alone reaches bit 14, which makes the exponent that of NaN.
  const __m128i carried = _mm_add_epi16(half, _mm_set1_epi16(0x80));
  return {_mm256_cvtph_ps(_mm_or_si128(half, _mm_and_si128(carried, _mm_set1_epi16(0x4000))))};
}
inline F32 load(const E4M3* p) { return from_e4m3(load_bytes(p, 8)); }
inline F32 load_partial(const E4M3* p, int n) { return from_e4m3(load_bytes(p, n)); }
inline F32 from_int8(__m128i bytes) { return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))}; }
inline F32 load(const int8_t* p) { return from_int8(load_bytes(p, 8)); }
inline F32 load_partial(const int8_t* p, int n) { return from_int8(load_bytes(p, n)); }

// The low bytes of eight numbers that lie in -128 .. 255.
inline __m128i low_bytes(__m256i x) {
  const __m256i picked = _mm256_shuffle_epi8(
      x, _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12,
                          -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  return _mm_unpacklo_epi32(_mm256_castsi256_si128(picked), _mm256_extracti128_si256(picked, 1));
}
inline __m128i to_e4m3(F32 x) {
  const __m256i sign = _mm256_srli_epi32(_mm256_castps_si256(x.v), 31);
  const __m256 magnitude = _mm256_min_ps(abs(x).v, _mm256_set1_ps(e4m3_highest));
  const __m256i whole = _mm256_castps_si256(magnitude);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(whole, 20), _mm256_set1_epi32(1));
  const __m256i biased = _mm256_add_epi32(whole, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff)));
  const __m256i normal = _mm256_sub_epi32(_mm256_srli_epi32(biased, 20), _mm256_set1_epi32(960));
  // Below 2^-6 a step is 2^-9: adding 2^14 leaves the number of steps in the last bits.
  const __m256 steps = _mm256_add_ps(magnitude, _mm256_set1_ps(16384.0f));
  const __m256i tiny = _mm256_sub_epi32(_mm256_castps_si256(steps), _mm256_set1_epi32(0x46800000));
  const __m256i small =
      _mm256_castps_si256(_mm256_cmp_ps(magnitude, _mm256_set1_ps(0.015625f), _CMP_LT_OQ));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q));
  __m256i code = _mm256_blendv_epi8(normal, tiny, small);
  code = _mm256_or_si256(code, _mm256_slli_epi32(sign, 7));
  return low_bytes(_mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), nan));
}
inline void store_partial(E4M3* p, F32 x, int n) { store_bytes(p, to_e4m3(x), n); }
inline void store(E4M3* p, F32 x) { store_partial(p, x, 8); }
inline __m128i to_int8(F32 x) {
  const __m256i whole = _mm256_cvtps_epi32(x.v);
  const __m256i lowest = _mm256_set1_epi32(-128), highest = _mm256_set1_epi32(127);
  return low_bytes(_mm256_max_epi32(lowest, _mm256_min_epi32(highest, whole)));
}
inline void store_partial(int8_t* p, F32 x, int n) { store_bytes(p, to_int8(x), n); }
inline void store(int8_t* p, F32 x) { store_partial(p, x, 8); }

#endif

}  // namespace quire::QUIRE_ISA
