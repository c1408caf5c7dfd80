// Elementary functions over F32.
#pragma once

#include "simd/vec.h"

namespace quire::QUIRE_ISA {

// e^x to about 1 ulp; 0 below the smallest denormal, +inf above the largest float, NaN for NaN.
//
// x = n ln 2 + r with |r| <= ln 2 / 2, ln 2 split in two so that n * ln2_high is exact (Cody and
// Waite 1980); e^r by its Taylor series, whose first dropped term is below 2^-27 there.
inline F32 exp(F32 x) {
  // The bounds come first: min and max return the second operand, x, when it is NaN.
  const F32 bounded = min(set1(89.0f), max(set1(-104.0f), x));
  const F32 n = round(bounded * set1(1.44269504f));
  F32 r = fma(n, set1(-0.693359375f), bounded);
  r = fma(n, set1(2.12194440e-4f), r);
  F32 p = set1(1.0f / 5040);
  p = fma(p, r, set1(1.0f / 720));
  p = fma(p, r, set1(1.0f / 120));
  p = fma(p, r, set1(1.0f / 24));
  p = fma(p, r, set1(1.0f / 6));
  p = fma(p, r, set1(0.5f));
  p = fma(p * r, r, r) + set1(1.0f);
  return scale_by_power(p, n);
}

}  // namespace quire::QUIRE_ISA
