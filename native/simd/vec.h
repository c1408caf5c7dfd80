// F32: one register of floats of the instruction set this file is compiled for.
//
// Everything lives in quire::<isa>, so that no inline function is shared between instruction sets.
//   lanes; zero(), set1(x); load/store of float, BF16, F16 (rounding to nearest even), with
//   *_partial(p, n) touching the first n < lanes elements only (others load as 0);
//   load_even(p), load_odd(p) of 2 lanes BF16;
//   load/store and *_partial of E4M3 (read as value / e4m3_unit; written to nearest even, NaN as
//   0x7f, saturating at 448) and of int8_t (to nearest even, saturating);
//   + - * /, fma(a, b, c) = a * b + c where a may be a float, min, max, abs, sqrt, round;
//   less(a, b) -> Mask, any(mask), bits(mask) from lane 0 up, select(mask, a, b);
//   store_where(p, mask, x) -> n: the lanes of the mask, in order, to p[0 .. n); room for all
//   lanes; sum(), max(): across lanes, halves folded in a fixed order;
//   transpose(from, from_stride, to, to_stride): lanes x lanes integers of 32 bits.
// min and max return the second operand when either is NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "include/types.h"

#if defined(QUIRE_NEON)
#include <arm_neon.h>
#elif defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(QUIRE_NEON) || defined(__AVX2__)
#define QUIRE_VECTORS  // registers of bytes that can be shifted and looked up in a table
#endif

#if defined(__AVX512F__)
#include "simd/avx512.h"
#elif defined(__AVX2__)
#include "simd/avx2.h"
#elif defined(QUIRE_NEON)
#include "simd/neon.h"
#else
#include "simd/scalar.h"
#endif
#if defined(__AVX2__)
#include "simd/bytes.h"
#endif

namespace quire::QUIRE_ISA {

#if !defined(QUIRE_NEON)
inline F32 fma(float a, F32 b, F32 c) { return fma(set1(a), b, c); }
#endif

template <class T>
constexpr T smaller(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T larger(T a, T b) {
  return a < b ? b : a;
}
inline int64_t ceil_div(int64_t n, int64_t step) { return (n + step - 1) / step; }

// F32 of n <= lanes elements at p.
template <class T>
inline F32 load_tail(const T* p, int64_t n) {
  return n >= F32::lanes ? load(p) : load_partial(p, static_cast<int>(n));
}
template <class T>
inline void store_tail(T* p, F32 x, int64_t n) {
  if (n >= F32::lanes)
    store(p, x);
  else
    store_partial(p, x, static_cast<int>(n));
}

}  // namespace quire::QUIRE_ISA
