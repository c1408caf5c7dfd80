// What this machine can do at best: loops of nothing but multiply-adds, or of nothing but loads.
#include "include/kernels.h"
#include "simd/dot.h"
#include "simd/matrix_tiles.h"
#include "simd/vec.h"

namespace quire::QUIRE_ISA {
namespace {

// Enough independent sums to hide the latency of one.
constexpr int chains = 12;

float fold(const F32 (&sums)[chains]) {
  F32 total = zero();
  for (const F32& x : sums) total = total + x;
  return sum(total);
}

#if defined(__AMX_INT8__) && defined(__AMX_BF16__)
// The products of all four tiles of sums, every eighth round: one takes as long as many of vectors.
template <class Multiply>
double probe_tiles(int64_t rounds, double operations, const Multiply& multiply) {
  const TileConfiguration configuration(tile_row_bytes);
  double done = 0;
  for (int64_t round = 0; round < rounds; round += 8) {
    multiply();
    done += 4 * operations;
  }
  return done;
}
#endif

}  // namespace

double probe_fma(int64_t rounds, float* sink) {
  F32 sums[chains];
  for (int i = 0; i < chains; ++i) sums[i] = set1(static_cast<float>(i));
  const F32 a = set1(*sink), b = set1(0.5f);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < chains; ++i) sums[i] = fma(a, b, sums[i]);
  }
  *sink = fold(sums);
  return 2.0 * F32::lanes * chains * static_cast<double>(rounds);
}

double probe_dot(int64_t rounds, float* sink) {
#if defined(__AMX_BF16__)
  (void)sink;
  return probe_tiles(rounds, 2.0 * 16 * 16 * 32, [] {
    multiply_bfloat16<0, 4, 6>(), multiply_bfloat16<1, 4, 7>();
    multiply_bfloat16<2, 5, 6>(), multiply_bfloat16<3, 5, 7>();
  });
#elif defined(__AVX512BF16__)
  F32 sums[chains];
  for (int i = 0; i < chains; ++i) sums[i] = set1(static_cast<float>(i));
  const auto a = reinterpret_cast<__m512bh>(set1(*sink).v);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < chains; ++i) sums[i].v = _mm512_dpbf16_ps(sums[i].v, a, a);
  }
  *sink = fold(sums);
  return 4.0 * F32::lanes * chains * static_cast<double>(rounds);
#else
  (void)rounds, (void)sink;
  return 0;
#endif
}

double probe_int8(int64_t rounds, float* sink) {
#if defined(__AMX_INT8__)
  (void)sink;
  return probe_tiles(rounds, 2.0 * 16 * 16 * 64, [] {
    multiply_bytes<0, 4, 6>(), multiply_bytes<1, 4, 7>();
    multiply_bytes<2, 5, 6>(), multiply_bytes<3, 5, 7>();
  });
#elif defined(__AVX2__)
  I32 sums[chains];
  for (int i = 0; i < chains; ++i) sums[i] = set1(i);
  const I32 a = set1(static_cast<int32_t>(*sink) + 0x01010101);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < chains; ++i) {
#if defined(__AVX512VNNI__)
      sums[i].v = _mm512_dpbusd_epi32(sums[i].v, a.v, a.v);
#else
      Bytes x = a.v;
      __asm__ volatile("" : "+x"(x));  // or the product would be computed once
      sums[i] = add_wide(sums[i], multiply_pairs(x, a.v));
#endif
    }
  }
  F32 total = zero();
  for (const I32& x : sums) total = total + to_float(x);
  *sink = sum(total);
  return 8.0 * F32::lanes * chains * static_cast<double>(rounds);
#elif defined(QUIRE_NEON)
  const Bytes a = set1_byte(static_cast<int>(*sink) + 1);
  *sink = sum(to_float(repeat_dots<chains>(a, rounds)));
  return 8.0 * F32::lanes * chains * static_cast<double>(rounds);
#else
  (void)rounds, (void)sink;
  return 0;
#endif
}

void probe_read(const float* data, int64_t n, float* sink) {
  F32 sums[4] = {zero(), zero(), zero(), zero()};
  for (int64_t i = 0; i + 4 * F32::lanes <= n; i += 4 * F32::lanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sums[j] = max(sums[j], load(data + i + j * F32::lanes));
  }
  *sink = max(max(max(sums[0], sums[1]), max(sums[2], sums[3])));
}

}  // namespace quire::QUIRE_ISA
