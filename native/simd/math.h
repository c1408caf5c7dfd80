// Elementary functions over F32.
#pragma once

#include "simd/vec.h"

namespace quire::QUIRE_ISA {

// e^x to about 1 ulp; 0 below the smallest denormal, +inf above the largest float, NaN for NaN.
//
// x = n ln 2 + r with |r| <= ln 2 / 2, ln 2 split in two so that n * ln2_high is exact (Cody and
// Waite 1980); e^r by its Taylor series, whose first dropped term is below 2^-27 there.
//
// Of n registers at once: each step of all of them before the next, or the processor, which looks
// only so far ahead, waits for the one in front.
template <int n>
inline void exp(F32 (&x)[n]) {
  F32 powers[n], p[n];
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) {
    // The bounds come first: min and max return the second operand, x, when it is NaN.
    x[i] = min(set1(89.0f), max(set1(-104.0f), x[i]));
    powers[i] = round(x[i] * set1(1.44269504f));
  }
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) x[i] = fma(powers[i], set1(-0.693359375f), x[i]);
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) x[i] = fma(powers[i], set1(2.12194440e-4f), x[i]);
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) p[i] = fma(set1(1.0f / 5040), x[i], set1(1.0f / 720));
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) p[i] = fma(p[i], x[i], set1(1.0f / 120));
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) p[i] = fma(p[i], x[i], set1(1.0f / 24));
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) p[i] = fma(p[i], x[i], set1(1.0f / 6));
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) p[i] = fma(p[i], x[i], set1(0.5f));
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) p[i] = fma(p[i] * x[i], x[i], x[i]) + set1(1.0f);
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) x[i] = scale_by_power(p[i], powers[i]);
}

inline F32 exp(F32 x) {
  F32 one[1] = {x};
  exp(one);
  return one[0];
}

}  // namespace quire::QUIRE_ISA
