// Elementary functions over F32.
#pragma once

#include "simd/vec.h"

namespace quire::QUIRE_ISA {

// Of bounded x, the power n of 2 and e^r - 1, where x = n ln 2 + r with |r| <= ln 2 / 2.
//
// ln 2 is split in two so that n * ln2_high is exact (Cody and Waite 1980); e^r is its Taylor
// series, whose first dropped term is below 2^-27 there.
//
// Of `count` registers at once: each step of all of them before the next, or the processor, which
// looks only so far ahead, waits for the one in front.
template <int count>
[[gnu::always_inline]] inline void exp_parts(F32 (&x)[count], F32 (&powers)[count],
                                             F32 (&p)[count]) {
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) powers[i] = round(x[i] * set1(1.44269504f));
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) x[i] = fma(powers[i], set1(-0.693359375f), x[i]);
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) x[i] = fma(powers[i], set1(2.12194440e-4f), x[i]);
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) p[i] = fma(set1(1.0f / 5040), x[i], set1(1.0f / 720));
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) p[i] = fma(p[i], x[i], set1(1.0f / 120));
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) p[i] = fma(p[i], x[i], set1(1.0f / 24));
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) p[i] = fma(p[i], x[i], set1(1.0f / 6));
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) p[i] = fma(p[i], x[i], set1(0.5f));
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) p[i] = fma(p[i] * x[i], x[i], x[i]);
}

// x within both bounds; NaN stays, for min and max return the second operand then.
inline F32 within(float lowest, float highest, F32 x) {
  return min(set1(highest), max(set1(lowest), x));
}

// e^x to about 1 ulp; 0 below the smallest denormal, +inf above the largest float, NaN for NaN.
template <int n>
inline void exp(F32 (&x)[n]) {
  F32 powers[n], p[n];
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) x[i] = within(-104.0f, 89.0f, x[i]);
  exp_parts(x, powers, p);
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) x[i] = scale_by_power(p[i] + set1(1.0f), powers[i]);
}

inline F32 exp(F32 x) {
  F32 one[1] = {x};
  exp(one);
  return one[0];
}

// tanh(x) to a few ulp, NaN for NaN: m / (m + 2) with m = e^2x - 1, which is exact near 0, too.
inline F32 tanh(F32 x) {
  F32 doubled[1] = {within(-20.0f, 20.0f, x + x)}, powers[1], p[1];
  exp_parts(doubled, powers, p);
  const F32 power = scale_by_power(set1(1.0f), powers[0]);
  const F32 m = fma(power, p[0], power - set1(1.0f));
  return m / (m + set1(2.0f));
}

// cap * tanh(x / cap)
inline F32 soft_capped(F32 x, float cap) { return tanh(x * set1(1.0f / cap)) * set1(cap); }

}  // namespace quire::QUIRE_ISA
