// Factors and codes of inputs that are rounded to floats of few bits in small groups;
// quire/kernels/matrices/activation_scheme.py has the definitions.
#pragma once

#include "include/activation_scheme.h"
#include "simd/e4m3.h"

namespace quire::QUIRE_ISA {

// Groups whose largest input is smaller are 0.
constexpr float smallest_input = 1e-30f;

// The power of two by which a group's largest input comes to lie in the last binade of numbers
// below 2 ** (offset + 1); three quarters of the next power count as that.
inline float power_factor(float most, uint32_t offset) {
  uint32_t bits;
  std::memcpy(&bits, &most, sizeof(bits));
  bits = ((bits + (1u << 21)) & 0x7f800000u) - (offset << 23);
  float factor;
  std::memcpy(&factor, &bits, sizeof(factor));
  return factor;
}

// Of a group of E2M1, whose largest number is 6: a power of two, or an E4M3 number over the scale
// that all groups have.
inline float e2m1_factor(const ActivationScheme& scheme, float most) {
  if (most < smallest_input) return 0.0f;
  if (scheme.has_power_factors) return power_factor(most, 2);
  E4M3 rounded[F32::lanes];
  store(rounded, set1(most / 6.0f * scheme.scale));
  const float number = e4m3_number(rounded[0].bits);
  return (number == 0.0f ? 0.125f : number) / scheme.scale;
}

// Twice the E2M1 number that is nearest to x, with ties to the even code: -12 .. 12.
inline F32 doubled_e2m1(F32 x) {
  const F32 size = min(abs(x), set1(6.0f));
  const F32 small = round(size + size), middle = round(size), large = round(size * set1(0.5f));
  const F32 code = select(less(size, set1(2.0f)), small,
                          select(less(size, set1(4.0f)), middle + middle, large * set1(4.0f)));
  return select(less(x, zero()), zero() - code, code);
}

}  // namespace quire::QUIRE_ISA
