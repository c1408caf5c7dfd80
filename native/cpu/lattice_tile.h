// E8P for a row or two: codes go from their matrices to the products, never to memory.
//
// A register of codes has 8 inputs of each output, two outputs to a byte, n and n + 16. The high
// halves are not taken out: what a byte's product is too much is that of its low half.
#pragma once

#include "cpu/quantized_scales.h"
#include "cpu/vector_tile.h"

namespace quire::QUIRE_ISA {

// What twice a code of E8P is more than quarters are.
constexpr int32_t lattice_zero = 15;

// Whether tiles take codes that are half bytes (cpu/lattice_planes.h).
inline bool takes_half_bytes(const QuantizedWeights& weights) {
  return has_vector_tiles && weights.vectors == VectorForm::e8p;
}

#if defined(__AVX512VBMI__)

// Codes of a span as LatticeHalves takes them.
inline void unpack_half_bytes(const QuantizedWeights& weights, const PanelMap& map,
                              const RecordSpan& span, uint8_t* out) {
  const LatticeExpander expander(*weights.vector_table, weights.zero);
  for (int64_t i = 0; i < span.records; ++i)
    expander.expand_halves(
        reinterpret_cast<const uint8_t*>(span.panel + map.codes_of(span.first + i)),
        out + i * LatticeHalves::record_bytes);
}

constexpr int lattice_tile_rows = 2;

// 32 outputs' sums of four inputs, [2 registers of 8 bytes of inputs].
inline __m512i whole_sums(const __m512i (&parts)[2]) {
  const __m512 x = _mm512_castsi512_ps(parts[0]), y = _mm512_castsi512_ps(parts[1]);
  return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                          _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
}

template <int rows>
void run_lattice_tile(const QuantizedTile& tile) {
  constexpr int panel = QuantizedWeights::panel_width;
  const LatticePairs lattice(*tile.vectors);
  const __m512i low_half = _mm512_set1_epi8(15);
  F32 sums[rows][2];
#pragma GCC unroll 2
  for (int m = 0; m < rows; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v)
      sums[m][v] = tile.first ? zero() : load(tile.out + m * panel + v * F32::lanes);
  RecordWalk<DirectScales<float>> record(tile);
  const ActivationGroup* a = tile.activations;
  const char* ahead = tile.ahead;
  for (int64_t group = 0; group < tile.groups; ++group, a += rows) {
    for (int64_t i = 0; i < tile.ahead_bytes; i += 64)
      __builtin_prefetch(ahead + i, 0, asked_cache);
    ahead += tile.ahead_bytes;
    __m512i all[rows][2] = {}, low[rows][2] = {};
#pragma GCC unroll 2
    for (int pair = 0; pair < 2; ++pair) {
      const LatticePairs::Codes codes = lattice.codes_of(record.codes, pair);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m512i lower = _mm512_and_si512(codes.of[i], low_half);
#pragma GCC unroll 2
        for (int m = 0; m < rows; ++m) {
          int64_t eight;
          std::memcpy(&eight, a[m].codes + 16 * pair + i / 2 * 8, sizeof(eight));
          const __m512i x = _mm512_set1_epi64(eight);
          all[m][i % 2] = _mm512_dpbusd_epi32(all[m][i % 2], codes.of[i], x);
          low[m][i % 2] = _mm512_dpbusd_epi32(low[m][i % 2], lower, x);
        }
      }
    }
    const F32 scales[2] = {record.scales.scale(0, 0), record.scales.scale(F32::lanes, 0)};
#pragma GCC unroll 2
    for (int m = 0; m < rows; ++m) {
      const F32 own = set1(a[m].scale[0]);
      const __m512i zero = _mm512_set1_epi32(a[m].start[0]);
      const __m512i lower = whole_sums(low[m]);
      const __m512i higher = _mm512_sub_epi32(whole_sums(all[m]), lower);
      const I32 dots[2] = {{_mm512_add_epi32(_mm512_srai_epi32(higher, 3), zero)},
                           {_mm512_add_epi32(_mm512_slli_epi32(lower, 1), zero)}};
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) sums[m][v] = fma(to_float(dots[v]), scales[v] * own, sums[m][v]);
    }
    record.step(tile.steps);
  }
#pragma GCC unroll 2
  for (int m = 0; m < rows; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) store(tile.out + m * panel + v * F32::lanes, sums[m][v]);
}

inline RunQuantizedTile lattice_tile_of(int64_t rows) {
  return rows == 1 ? run_lattice_tile<1> : run_lattice_tile<2>;
}

#else
inline void unpack_half_bytes(const QuantizedWeights&, const PanelMap&, const RecordSpan&,
                              uint8_t*) {}
#endif

}  // namespace quire::QUIRE_ISA
