// Words: one register of unsigned integers of 32 bits, as many as F32 has lanes.
//
// The compiler's own vectors: + * ^ >> and the like are instructions everywhere, or two of them.
#pragma once

#include "simd/vec.h"

namespace quire::QUIRE_ISA {

typedef uint32_t Words __attribute__((vector_size(4 * F32::lanes)));
typedef int32_t SignedWords __attribute__((vector_size(4 * F32::lanes)));
typedef float FloatLanes __attribute__((vector_size(4 * F32::lanes)));

static_assert(sizeof(Words) == sizeof(F32), "a word for each lane");

// The same bits.
template <class To, class From>
inline To same_bits(const From& from) {
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}
inline F32 as_float(Words x) { return same_bits<F32>(x); }

// first, first + 1, ... in the lanes.
inline Words count_from(uint32_t first) {
  Words x;
  for (int lane = 0; lane < F32::lanes; ++lane) x[lane] = static_cast<uint32_t>(lane);
  return x + first;
}

// One for each of the bytes at p.
#if defined(__AVX512F__)
inline Words load_words(const uint8_t* p) {
  return same_bits<Words>(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
#elif defined(__AVX2__)
inline Words load_words(const uint8_t* p) {
  return same_bits<Words>(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
#elif defined(QUIRE_NEON)
inline Words load_words(const uint8_t* p) {
  const uint16x8_t wide = vmovl_u8(vld1_u8(p));
  const uint32x4_t halves[2] = {vmovl_u16(vget_low_u16(wide)), vmovl_u16(vget_high_u16(wide))};
  return same_bits<Words>(halves);
}
#else
inline Words load_words(const uint8_t* p) {
  Words x;
  for (int lane = 0; lane < F32::lanes; ++lane) x[lane] = p[lane];
  return x;
}
#endif

// The powers of two that bytes stand for, 2 ** (byte - 127). The least is not normal.
inline F32 load_powers(const uint8_t* p) {
  const Words bits = load_words(p) << 23, least = Words{} + (1u << 22);
  return as_float(bits < least ? least : bits);
}

// from[x] of each lane.
inline F32 gather(const float* from, Words x) {
  alignas(64) float found[F32::lanes];
  for (int lane = 0; lane < F32::lanes; ++lane) found[lane] = from[x[lane]];
  return load(found);
}

// to_float: of words below 2^31. to_words: the whole part of 0 <= x < 2^31.
#if defined(QUIRE_NEON)
inline F32 to_float(Words x) {
  const F32 halves = as_float(x);
  return {vcvtq_f32_u32(vreinterpretq_u32_f32(halves.low)),
          vcvtq_f32_u32(vreinterpretq_u32_f32(halves.high))};
}
inline Words to_words(F32 x) {
  return same_bits<Words>(F32{vreinterpretq_f32_u32(vcvtq_u32_f32(x.low)),
                              vreinterpretq_f32_u32(vcvtq_u32_f32(x.high))});
}
#else
inline F32 to_float(Words x) {
  return same_bits<F32>(__builtin_convertvector(same_bits<SignedWords>(x), FloatLanes));
}
inline Words to_words(F32 x) {
  return same_bits<Words>(__builtin_convertvector(same_bits<FloatLanes>(x), SignedWords));
}
#endif

}  // namespace quire::QUIRE_ISA
