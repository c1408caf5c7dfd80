// F32 as four plain floats, for machines without AVX2. Included by vec.h.
#pragma once

#include <math.h>

namespace quire::QUIRE_ISA {

struct F32 {
  static constexpr int lanes = 4;
  float v[4];
};
struct Mask {
  bool v[4];
};

template <class Function>
inline F32 each_lane(Function f) {
  return {{f(0), f(1), f(2), f(3)}};
}

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline float widen(float x) { return x; }
inline float widen(BF16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
inline float widen(F16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
  if (rest >= 0x7c00) return float_of(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  // Scaling by 2^112 moves the exponent from half's bias to float's; exact for denormals too.
  const float magnitude = float_of(rest << 13) * float_of(0x77800000);
  return float_of(sign | bits_of(magnitude));
}
inline void narrow(float* p, float x) { *p = x; }
// Round to nearest even; NaN stays NaN.
inline void narrow(BF16* p, float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
  p->bits = static_cast<uint16_t>((x != x ? bits | 0x400000 : rounded) >> 16);
}
inline void narrow(F16* p, float x) {
  const uint32_t sign = bits_of(x) >> 16 & 0x8000, rest = bits_of(x) & 0x7fffffff;
  uint32_t half;
  if (rest > 0x7f800000) {
    half = 0x7e00;
  } else if (rest >= 0x477ff000) {  // rounds to infinity
    half = 0x7c00;
  } else if (rest < 0x38800000) {  // denormal: adding 0.5 aligns the last bit to 2^-24
    half = bits_of(float_of(rest) + 0.5f) - 0x3f000000;
  } else {
    half = (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13;
  }
  p->bits = static_cast<uint16_t>(sign | half);
}
// See bytes.h.
inline float widen(E4M3 x) {
  const uint16_t half = static_cast<uint16_t>((x.bits & 0x80) << 8 | (x.bits & 0x7f) << 7);
  return widen(F16{static_cast<uint16_t>((half & 0x7fff) == 0x3f80 ? half | 0x4000 : half)});
}
inline float widen(int8_t x) { return x; }
inline void narrow(E4M3* p, float x) {
  const float magnitude = fabsf(x) < e4m3_highest ? fabsf(x) : e4m3_highest;
  const uint32_t bits = bits_of(magnitude), sign = bits_of(x) >> 31 << 7;
  // Below 2^-6 a step is 2^-9: adding 2^14 leaves the number of steps in the last bits.
  const uint32_t code = magnitude < 0.015625f ? bits_of(magnitude + 16384.0f) - 0x46800000
                                              : ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - 960;
  p->bits = static_cast<uint8_t>(x != x ? 0x7f : code | sign);
}
inline void narrow(int8_t* p, float x) {
  const float bounded = x > -128.0f ? (x < 127.0f ? x : 127.0f) : -128.0f;
  *p = static_cast<int8_t>(nearbyintf(bounded));
}

inline F32 set1(float x) { return {{x, x, x, x}}; }
inline F32 zero() { return set1(0.0f); }
template <class T>
inline F32 load(const T* p) {
  return each_lane([&](int i) { return widen(p[i]); });
}
// Of 8 consecutive bfloat16 the 4 with even index, and the 4 with odd index.
inline F32 load_even(const BF16* p) {
  return each_lane([&](int i) { return widen(p[2 * i]); });
}
inline F32 load_odd(const BF16* p) {
  return each_lane([&](int i) { return widen(p[2 * i + 1]); });
}
template <class T>
inline F32 load_partial(const T* p, int n) {
  return each_lane([&](int i) { return i < n ? widen(p[i]) : 0.0f; });
}
template <class T>
inline void store(T* p, F32 x) {
  for (int i = 0; i < 4; ++i) narrow(p + i, x.v[i]);
}
template <class T>
inline void store_partial(T* p, F32 x, int n) {
  for (int i = 0; i < n; ++i) narrow(p + i, x.v[i]);
}

inline F32 operator+(F32 a, F32 b) {
  return each_lane([&](int i) { return a.v[i] + b.v[i]; });
}
inline F32 operator-(F32 a, F32 b) {
  return each_lane([&](int i) { return a.v[i] - b.v[i]; });
}
inline F32 operator*(F32 a, F32 b) {
  return each_lane([&](int i) { return a.v[i] * b.v[i]; });
}
inline F32 operator/(F32 a, F32 b) {
  return each_lane([&](int i) { return a.v[i] / b.v[i]; });
}
inline F32 fma(F32 a, F32 b, F32 c) { return a * b + c; }
inline F32 min(F32 a, F32 b) {
  return each_lane([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F32 max(F32 a, F32 b) {
  return each_lane([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F32 abs(F32 a) {
  return each_lane([&](int i) { return fabsf(a.v[i]); });
}
inline F32 sqrt(F32 a) {
  return each_lane([&](int i) { return sqrtf(a.v[i]); });
}
inline F32 round(F32 a) {
  return each_lane([&](int i) { return nearbyintf(a.v[i]); });
}
// a * 2^n for whole |n| < 250.
inline F32 scale_by_power(F32 a, F32 n) {
  return each_lane([&](int i) { return ldexpf(a.v[i], static_cast<int>(n.v[i])); });
}

inline Mask less(F32 a, F32 b) {
  return {{a.v[0] < b.v[0], a.v[1] < b.v[1], a.v[2] < b.v[2], a.v[3] < b.v[3]}};
}
inline bool any(Mask m) { return m.v[0] || m.v[1] || m.v[2] || m.v[3]; }
inline uint32_t bits(Mask m) {
  return static_cast<uint32_t>(m.v[0] | m.v[1] << 1 | m.v[2] << 2 | m.v[3] << 3);
}
inline int store_where(float* p, Mask m, F32 x) {
  int n = 0;
  for (int lane = 0; lane < F32::lanes; ++lane)
    if (m.v[lane]) p[n++] = x.v[lane];
  return n;
}
inline F32 select(Mask m, F32 a, F32 b) {
  return each_lane([&](int i) { return m.v[i] ? a.v[i] : b.v[i]; });
}

inline float sum(F32 a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
inline float max(F32 a) {
  const F32 pair = max(a, {{a.v[2], a.v[3], a.v[0], a.v[1]}});
  return pair.v[0] > pair.v[1] ? pair.v[0] : pair.v[1];
}

// Words of row i to column i.
inline void transpose(const uint32_t* from, int64_t from_stride, uint32_t* to, int64_t to_stride) {
  for (int i = 0; i < F32::lanes; ++i)
    for (int c = 0; c < F32::lanes; ++c) to[c * to_stride + i] = from[i * from_stride + c];
}

}  // namespace quire::QUIRE_ISA
