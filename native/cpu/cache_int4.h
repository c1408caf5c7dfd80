// A head of a token on its way into a cache of 4 bits: rotated, then rounded in groups of 32.
//
// The rotation is a Hadamard matrix over sqrt(n), symmetric and its own inverse: it spreads a few
// large channels over all of them, and q k = (q R) (R k). Where the head dim is not a power of
// two, R has blocks of its largest factor that is.
#pragma once

#include <math.h>

#include "simd/vec.h"

namespace quire::QUIRE_ISA {
namespace {

// One block of n = 2^k elements: sums and differences of neighbours 1, 2, 4, ... apart, in order.
void rotate_block(float* x, int64_t n) {
  for (int64_t apart = 1; apart < n; apart *= 2)
    for (int64_t first = 0; first < n; first += 2 * apart)
      for (int64_t i = first; i < first + apart; i += F32::lanes) {
        const int64_t count = first + apart - i;
        const F32 a = load_tail(x + i, count), b = load_tail(x + i + apart, count);
        store_tail(x + i, a + b, count);
        store_tail(x + i + apart, a - b, count);
      }
  const F32 factor = set1(1.0f / sqrtf(static_cast<float>(n)));
  for (int64_t i = 0; i < n; i += F32::lanes)
    store_tail(x + i, load_tail(x + i, n - i) * factor, n - i);
}

void rotate_by_hadamard(float* x, int64_t head_dim) {
  const int64_t block = head_dim & -head_dim;
  for (int64_t i = 0; i < head_dim; i += block) rotate_block(x + i, block);
}

uint32_t bits_of_float(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

float widened(BF16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float wide;
  memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

// The bfloat16 next to x, away from 0.
BF16 away_from_zero(float x) { return {static_cast<uint16_t>((bits_of_float(x) + 0xffff) >> 16)}; }

struct Int4Scales {
  BF16 scale, minimum;
};

// What codes are made with: of a scale of 0 all are 0.
float divisor_of(BF16 scale) {
  const float x = widened(scale);
  return x == 0.0f ? 1.0f : x;
}

// One group in codes 0 to 15, x = code * scale + minimum. The minimum is rounded down to bfloat16
// and the scale, a 15th of what is above it, up, so that no code saturates. NaN where x is not
// finite, or spans more than a float holds.
Int4Scales encode_group(const float* x, int8_t* codes) {
  F32 lowest = load(x), highest = lowest, poison = zero();
  for (int64_t i = 0; i < int4_group; i += F32::lanes) {
    const F32 v = load(x + i);
    lowest = min(v, lowest);
    highest = max(v, highest);
    poison = fma(v, zero(), poison);
  }
  const float low = 0.0f - max(zero() - lowest);  // -0 becomes 0
  const BF16 minimum =
      low < 0.0f ? away_from_zero(low) : BF16{static_cast<uint16_t>(bits_of_float(low) >> 16)};
  const float start = widened(minimum);
  const float wanted = (max(highest) - start) / 15.0f + sum(poison);
  const BF16 scale = wanted < INFINITY ? away_from_zero(wanted) : BF16{0x7fc0};
  if (!(widened(scale) < INFINITY)) {
    memset(codes, 0, int4_group);
    return {{0x7fc0}, {0x7fc0}};
  }
  const F32 first = set1(start), step = set1(divisor_of(scale));
  for (int64_t i = 0; i < int4_group; i += F32::lanes)
    store(codes + i, (load(x + i) - first) / step);
  return {scale, minimum};
}

}  // namespace
}  // namespace quire::QUIRE_ISA
