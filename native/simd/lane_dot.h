// Integer dot products of 16-byte lanes: signed bytes of an output's weights in each lane, times
// the same 16 activations in all. Exact, as those of dot.h are.
#pragma once

#include "simd/turned_words.h"
#include "simd/words.h"

namespace quire::QUIRE_ISA {

#if defined(QUIRE_VECTORS)

// What weights are before they are multiplied: their bytes less this.
#if defined(__AVX512VNNI__)
constexpr int lane_zero = 128;  // products are of unsigned bytes: sums lose it afterwards
#else
constexpr int lane_zero = 0;
#endif

#if defined(__AVX512VNNI__)
struct LaneInputs {
  __m512i inputs;
  explicit LaneInputs(const int8_t* from)
      : inputs(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))) {}
};
inline I32 add_lane_products(I32 sum, Bytes weights, const LaneInputs& x) {
  return {_mm512_dpbusd_epi32(sum.v, weights, x.inputs)};
}
#elif defined(__AVX512F__)
// Magnitudes of inputs times weights with the inputs' signs: two of them fit in 16 bits.
struct LaneInputs {
  __m512i magnitudes;
  __mmask64 negative;
  explicit LaneInputs(const int8_t* from) {
    const __m512i x =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    magnitudes = _mm512_abs_epi8(x);
    negative = _mm512_movepi8_mask(x);
  }
};
inline I32 add_lane_products(I32 sum, Bytes weights, const LaneInputs& x) {
  const Bytes own = _mm512_mask_sub_epi8(weights, x.negative, _mm512_setzero_si512(), weights);
  return add_wide(sum, multiply_pairs(x.magnitudes, own));
}
#elif defined(__AVX2__)
struct LaneInputs {
  __m256i inputs, magnitudes;
  explicit LaneInputs(const int8_t* from)
      : inputs(
            _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))),
        magnitudes(_mm256_abs_epi8(inputs)) {}
};
inline I32 add_lane_products(I32 sum, Bytes weights, const LaneInputs& x) {
  return add_wide(sum, multiply_pairs(x.magnitudes, _mm256_sign_epi8(weights, x.inputs)));
}
#else
struct LaneInputs {
  int8x16_t inputs;
  explicit LaneInputs(const int8_t* from) : inputs(vld1q_s8(from)) {}
};
inline int32x4_t add_lane_products(int32x4_t sum, uint8x16_t bytes, int8x16_t x) {
  const int8x16_t weights = vreinterpretq_s8_u8(bytes);
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, weights, x);
#else
  sum = vpadalq_s16(sum, vmull_s8(vget_low_s8(weights), vget_low_s8(x)));
  return vpadalq_s16(sum, vmull_high_s8(weights, x));
#endif
}
inline I32 add_lane_products(I32 sum, Bytes weights, const LaneInputs& x) {
  return {add_lane_products(sum.low, weights.low, x.inputs),
          add_lane_products(sum.high, weights.high, x.inputs)};
}
#endif

// start plus the sums of words: of lane l of register r to word r of lane l.
inline I32 add_lane_words(int32_t start, const I32 (&sums)[4]) {
  Bytes words[4];
  for (int i = 0; i < 4; ++i) words[i] = same_bits<Bytes>(sums[i]);
  turn_words(words);
  Words total = same_bits<Words>(set1(start));
  for (const Bytes& each : words) total += same_bits<Words>(each);
  return same_bits<I32>(total);
}

#endif

}  // namespace quire::QUIRE_ISA
