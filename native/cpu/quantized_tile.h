// The micro-kernel of quantized linears: a few rows times one panel over one block of inputs.
//
// Each output has one accumulator, a float, which takes the inputs' groups in ascending order:
//
//   sum += (scale of weights * scale of activations) * integer dot product - exact, of one group
//   sum += offset * (scale of activations * sum of their codes)            - where there are offsets
//
// So an output's bits depend on its own row alone, whatever the rows beside it, the instance that
// computed it, or the thread.
#pragma once

#include "include/quantized.h"
#include "simd/dot.h"
#include "simd/vec.h"

namespace quire::QUIRE_ISA {

// 32 activations of one row in 8 bits. A half is 16 inputs; where groups are 32 or more the first
// half's fields stand for all.
struct ActivationGroup {
  int8_t codes[32];
  float scale;
  int32_t start[2];  // minus the zero of the weights' codes times the sum of these
  float sum[2];      // scale times the sum of codes
  int32_t unused[3];
};
static_assert(sizeof(ActivationGroup) == 64, "a line of Activations");

// What Activations packs for quantized weights.
struct QuantizedFormat {
  using Word = uint32_t;
  static constexpr int word_inputs = 2;
  static constexpr int tile_rows = F32::lanes == 16 ? 6 : F32::lanes == 8 ? 4 : 2;

  int32_t zero = 0;
  bool halves = false;

  void fill(const float* x, int64_t n, Word* line) const {
    float values[32];
    F32 highest = quire::QUIRE_ISA::zero(), bad = highest;
    for (int i = 0; i < 32; i += F32::lanes) {
      const F32 part = n > i ? load_tail(x + i, n - i) : quire::QUIRE_ISA::zero();
      store(values + i, part);
      highest = max(abs(part), highest);
      bad = bad + part * quire::QUIRE_ISA::zero();  // NaN where x is infinite or NaN
    }
    const float most = max(highest);
    const bool silent = most < 1e-30f;
    const F32 inverse = set1(silent ? 0.0f : 127.0f / most);
    ActivationGroup group{};
    for (int i = 0; i < 32; i += F32::lanes) store(values + i, round(load(values + i) * inverse));
    int32_t sums[2] = {0, 0};
    for (int i = 0; i < 32; ++i) {
      const float value = smaller(127.0f, larger(-127.0f, values[i]));
      group.codes[i] = static_cast<int8_t>(static_cast<int32_t>(value));
      sums[i / 16] += group.codes[i];
    }
    if (!halves) sums[0] += sums[1];
    group.scale = (silent ? 0.0f : most / 127.0f) + sum(bad);
    for (int half = 0; half < 2; ++half) {
      group.start[half] = -zero * sums[half];
      group.sum[half] = group.scale * static_cast<float>(sums[half]);
    }
    std::memcpy(line, &group, sizeof(group));
  }
};

// One call of a tile.
struct QuantizedTile {
  const ActivationGroup* activations;  // [group][row]
  const uint8_t* codes;                // [group] records of a byte a code
  const float* scales;                 // [group][half][32 outputs]
  const float* offsets;                // the same, or null
  int64_t groups;
  bool first;  // whether this is the first block: `out` is written, else added to
  float* out;  // [row][32 outputs]
};

template <Range range, int halves, int rows>
void run_quantized_tile(const QuantizedTile& tile) {
  constexpr int vectors = F32::lanes == 16 ? 2 : 1, width = vectors * F32::lanes;
  constexpr int words = 8 / halves, panel = QuantizedWeights::panel_width;
  for (int part = 0; part < panel; part += width) {
    F32 sums[rows][vectors];
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v)
        sums[m][v] = tile.first ? zero() : load(tile.out + m * panel + part + v * F32::lanes);
    const ActivationGroup* a = tile.activations;
    const uint8_t* w = tile.codes + part * 4;
    int64_t line = part;
    for (int64_t group = 0; group < tile.groups; ++group, a += rows) {
#pragma GCC unroll 2
      for (int half = 0; half < halves; ++half, line += panel, w += words * word_bytes) {
        I32 dots[rows][vectors];
#pragma GCC unroll 16
        for (int m = 0; m < rows; ++m)
#pragma GCC unroll 2
          for (int v = 0; v < vectors; ++v) dots[m][v] = set1(a[m].start[half]);
        dot_words<range, rows, vectors, words>(w, a->codes + half * 16, sizeof(*a), dots);
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) {
          const F32 scale = load(tile.scales + line + v * F32::lanes);
#pragma GCC unroll 16
          for (int m = 0; m < rows; ++m)
            sums[m][v] = fma(to_float(dots[m][v]), scale * set1(a[m].scale), sums[m][v]);
          if (!tile.offsets) continue;
          const F32 offset = load(tile.offsets + line + v * F32::lanes);
#pragma GCC unroll 16
          for (int m = 0; m < rows; ++m)
            sums[m][v] = fma(offset, set1(a[m].sum[half]), sums[m][v]);
        }
      }
    }
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v)
        store(tile.out + m * panel + part + v * F32::lanes, sums[m][v]);
  }
}

}  // namespace quire::QUIRE_ISA
