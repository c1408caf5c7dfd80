// F32 as two 128-bit registers: NEON's 32 of them are what AVX2's 16 of 256 bits are, so tiles have
// the same shapes, and every sum its order: the bits of a result are those of avx2.h. Included by
// vec.h.
#pragma once

namespace quire::QUIRE_ISA {

struct F32 {
  static constexpr int lanes = 8;
  float32x4_t low, high;
};
struct Mask {
  uint32x4_t low, high;
};

inline F32 set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline F32 zero() { return set1(0.0f); }

inline F32 from_bf16(uint16x8_t bits) {
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16)),
          vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(bits), 16))};
}
inline F32 from_f16(uint16x8_t bits) {
  const float16x8_t halves = vreinterpretq_f16_u16(bits);
  return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
}
// The first n elements at p, zeros after them; memory past them is not touched.
inline uint16x8_t load_partial_16(const void* p, int n) {
  uint16_t bits[8] = {};
  std::memcpy(bits, p, static_cast<size_t>(n) * 2);
  return vld1q_u16(bits);
}
inline int8x8_t load_partial_8(const void* p, int n) {
  int8_t bytes[8] = {};
  std::memcpy(bytes, p, static_cast<size_t>(n));
  return vld1_s8(bytes);
}
inline F32 load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline F32 load(const BF16* p) { return from_bf16(vld1q_u16(&p->bits)); }
inline F32 load(const F16* p) { return from_f16(vld1q_u16(&p->bits)); }
// Of 16 consecutive bfloat16 the 8 with even index, and the 8 with odd index.
inline uint32x4_t load_pairs(const BF16* p) { return vreinterpretq_u32_u16(vld1q_u16(&p->bits)); }
inline F32 load_even(const BF16* p) {
  return {vreinterpretq_f32_u32(vshlq_n_u32(load_pairs(p), 16)),
          vreinterpretq_f32_u32(vshlq_n_u32(load_pairs(p + 8), 16))};
}
inline F32 load_odd(const BF16* p) {
  const uint32x4_t upper = vdupq_n_u32(0xffff0000);
  return {vreinterpretq_f32_u32(vandq_u32(load_pairs(p), upper)),
          vreinterpretq_f32_u32(vandq_u32(load_pairs(p + 8), upper))};
}
inline F32 load_partial(const float* p, int n) {
  float x[F32::lanes] = {};
  std::memcpy(x, p, static_cast<size_t>(n) * sizeof(float));
  return load(x);
}
inline F32 load_partial(const BF16* p, int n) { return from_bf16(load_partial_16(p, n)); }
inline F32 load_partial(const F16* p, int n) { return from_f16(load_partial_16(p, n)); }

// Round to nearest even; NaN stays NaN.
inline uint16x4_t to_bf16(float32x4_t x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16);
}
inline uint16x8_t to_bf16(F32 x) { return vcombine_u16(to_bf16(x.low), to_bf16(x.high)); }
inline uint16x8_t to_f16(F32 x) {
  return vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.low), x.high));
}
inline void store_partial_16(void* p, uint16x8_t x, int n) {
  uint16_t bits[8];
  vst1q_u16(bits, x);
  std::memcpy(p, bits, static_cast<size_t>(n) * 2);
}
inline void store_partial_8(void* p, int8x8_t x, int n) {
  int8_t bytes[8];
  vst1_s8(bytes, x);
  std::memcpy(p, bytes, static_cast<size_t>(n));
}
inline void store(float* p, F32 x) {
  vst1q_f32(p, x.low);
  vst1q_f32(p + 4, x.high);
}
inline void store(BF16* p, F32 x) { vst1q_u16(&p->bits, to_bf16(x)); }
inline void store(F16* p, F32 x) { vst1q_u16(&p->bits, to_f16(x)); }
inline void store_partial(float* p, F32 x, int n) {
  float all[F32::lanes];
  store(all, x);
  std::memcpy(p, all, static_cast<size_t>(n) * sizeof(float));
}
inline void store_partial(BF16* p, F32 x, int n) { store_partial_16(p, to_bf16(x), n); }
inline void store_partial(F16* p, F32 x, int n) { store_partial_16(p, to_f16(x), n); }

inline F32 operator+(F32 a, F32 b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
inline F32 operator-(F32 a, F32 b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
inline F32 operator*(F32 a, F32 b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
inline F32 operator/(F32 a, F32 b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
inline F32 fma(F32 a, F32 b, F32 c) {
  return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}
// In assembly: the compiler would copy a to all elements of a register first, which takes a turn of
// what multiplies.
inline F32 fma(float a, F32 b, F32 c) {
  __asm__("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(c.low) : "w"(b.low), "w"(a));
  __asm__("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(c.high) : "w"(b.high), "w"(a));
  return c;
}
inline Mask less(F32 a, F32 b) { return {vcltq_f32(a.low, b.low), vcltq_f32(a.high, b.high)}; }
inline F32 select(Mask m, F32 a, F32 b) {
  return {vbslq_f32(m.low, a.low, b.low), vbslq_f32(m.high, a.high, b.high)};
}
// Not fmin and fmax, which have another rule for NaN.
inline F32 min(F32 a, F32 b) { return select(less(a, b), a, b); }
inline F32 max(F32 a, F32 b) { return select(less(b, a), a, b); }
inline F32 abs(F32 a) { return {vabsq_f32(a.low), vabsq_f32(a.high)}; }
inline F32 sqrt(F32 a) { return {vsqrtq_f32(a.low), vsqrtq_f32(a.high)}; }
inline F32 round(F32 a) { return {vrndnq_f32(a.low), vrndnq_f32(a.high)}; }
// a * 2^n for whole |n| < 250, in two factors so that each is a normal float.
inline float32x4_t scale_by_power(float32x4_t a, float32x4_t n) {
  const int32x4_t whole = vcvtnq_s32_f32(n), half = vshrq_n_s32(whole, 1);
  const auto power = [](int32x4_t k) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(k, vdupq_n_s32(127)), 23));
  };
  return vmulq_f32(vmulq_f32(a, power(half)), power(vsubq_s32(whole, half)));
}
inline F32 scale_by_power(F32 a, F32 n) {
  return {scale_by_power(a.low, n.low), scale_by_power(a.high, n.high)};
}

inline bool any(Mask m) { return vmaxvq_u32(vorrq_u32(m.low, m.high)) != 0; }
inline uint32_t bits(Mask m) {
  const uint32_t powers[4] = {1, 2, 4, 8};
  const uint32x4_t bit = vld1q_u32(powers);
  return vaddvq_u32(vandq_u32(m.low, bit)) | vaddvq_u32(vandq_u32(m.high, bit)) << 4;
}
inline int store_where(float* p, Mask m, F32 x) {
  float lanes[F32::lanes];
  store(lanes, x);
  int n = 0;
  for (uint32_t rest = bits(m); rest != 0; rest &= rest - 1) p[n++] = lanes[__builtin_ctz(rest)];
  return n;
}

inline float sum(F32 a) {
  const float32x4_t x4 = vaddq_f32(a.low, a.high);
  const float32x2_t x2 = vadd_f32(vget_low_f32(x4), vget_high_f32(x4));
  return vget_lane_f32(x2, 0) + vget_lane_f32(x2, 1);
}
inline float max(F32 a) {
  const F32 x4 = max(a, {a.high, a.low});
  const F32 x2 = max(x4, {vextq_f32(x4.low, x4.low, 2), x4.high});
  const float first = vgetq_lane_f32(x2.low, 0), second = vgetq_lane_f32(x2.low, 1);
  return first > second ? first : second;
}

// Elements of one byte; bytes.h says how an E4M3 is read.
inline F32 from_e4m3(int8x8_t codes) {
  const uint16x8_t wide = vreinterpretq_u16_s16(vshll_n_s8(codes, 7));
  const uint16x8_t half = vandq_u16(wide, vdupq_n_u16(0xbfff));
  // 0x3f80 + 0x80 alone reaches bit 14, which makes the exponent that of NaN.
  const uint16x8_t carried = vaddq_u16(half, vdupq_n_u16(0x80));
  return from_f16(vorrq_u16(half, vandq_u16(carried, vdupq_n_u16(0x4000))));
}
inline F32 load(const E4M3* p) { return from_e4m3(vreinterpret_s8_u8(vld1_u8(&p->bits))); }
inline F32 load_partial(const E4M3* p, int n) { return from_e4m3(load_partial_8(p, n)); }
inline F32 from_int8(int8x8_t bytes) {
  const int16x8_t wide = vmovl_s8(bytes);
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))};
}
inline F32 load(const int8_t* p) { return from_int8(vld1_s8(p)); }
inline F32 load_partial(const int8_t* p, int n) { return from_int8(load_partial_8(p, n)); }

inline uint32x4_t to_e4m3(float32x4_t x) {
  const uint32x4_t sign = vshrq_n_u32(vreinterpretq_u32_f32(x), 31);
  const float32x4_t magnitude = vminq_f32(vabsq_f32(x), vdupq_n_f32(e4m3_highest));
  const uint32x4_t whole = vreinterpretq_u32_f32(magnitude);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(whole, 20), vdupq_n_u32(1));
  const uint32x4_t biased = vaddq_u32(whole, vaddq_u32(odd, vdupq_n_u32(0x7ffff)));
  const uint32x4_t normal = vsubq_u32(vshrq_n_u32(biased, 20), vdupq_n_u32(960));
  // Below 2^-6 a step is 2^-9: adding 2^14 leaves the number of steps in the last bits.
  const float32x4_t steps = vaddq_f32(magnitude, vdupq_n_f32(16384.0f));
  const uint32x4_t tiny = vsubq_u32(vreinterpretq_u32_f32(steps), vdupq_n_u32(0x46800000));
  const uint32x4_t small = vcltq_f32(magnitude, vdupq_n_f32(0.015625f));
  const uint32x4_t code = vorrq_u32(vbslq_u32(small, tiny, normal), vshlq_n_u32(sign, 7));
  return vbslq_u32(vceqq_f32(x, x), code, vdupq_n_u32(0x7f));
}
// The low bytes.
inline int8x8_t to_bytes(uint32x4_t low, uint32x4_t high) {
  const uint16x8_t halves = vcombine_u16(vmovn_u32(low), vmovn_u32(high));
  return vreinterpret_s8_u8(vmovn_u16(halves));
}
inline int8x8_t to_e4m3(F32 x) { return to_bytes(to_e4m3(x.low), to_e4m3(x.high)); }
inline void store_partial(E4M3* p, F32 x, int n) { store_partial_8(p, to_e4m3(x), n); }
inline void store(E4M3* p, F32 x) { vst1_u8(&p->bits, vreinterpret_u8_s8(to_e4m3(x))); }
inline int8x8_t to_int8(F32 x) {
  const F32 bounded = min(max(x, set1(-128.0f)), set1(127.0f));
  return to_bytes(vreinterpretq_u32_s32(vcvtnq_s32_f32(bounded.low)),
                  vreinterpretq_u32_s32(vcvtnq_s32_f32(bounded.high)));
}
inline void store_partial(int8_t* p, F32 x, int n) { store_partial_8(p, to_int8(x), n); }
inline void store(int8_t* p, F32 x) { vst1_s8(p, to_int8(x)); }

inline void transpose_4(const uint32_t* from, int64_t from_stride, uint32_t* to,
                        int64_t to_stride) {
  uint64x2_t pairs[4];
  for (int i = 0; i < 4; i += 2) {  // columns 0 and 2, then 1 and 3, of two rows
    const uint32x4_t a = vld1q_u32(from + i * from_stride);
    const uint32x4_t b = vld1q_u32(from + (i + 1) * from_stride);
    pairs[i] = vreinterpretq_u64_u32(vtrn1q_u32(a, b));
    pairs[i + 1] = vreinterpretq_u64_u32(vtrn2q_u32(a, b));
  }
  for (int c = 0; c < 2; ++c) {
    vst1q_u32(to + c * to_stride, vreinterpretq_u32_u64(vtrn1q_u64(pairs[c], pairs[2 + c])));
    vst1q_u32(to + (c + 2) * to_stride, vreinterpretq_u32_u64(vtrn2q_u64(pairs[c], pairs[2 + c])));
  }
}
// Words of row i to column i.
inline void transpose(const uint32_t* from, int64_t from_stride, uint32_t* to, int64_t to_stride) {
  for (int i = 0; i < F32::lanes; i += 4)
    for (int c = 0; c < F32::lanes; c += 4)
      transpose_4(from + i * from_stride + c, from_stride, to + c * to_stride + i, to_stride);
}

}  // namespace quire::QUIRE_ISA
