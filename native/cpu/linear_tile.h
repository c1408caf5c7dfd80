// The micro-kernel of linear: a few rows times one panel over one block of inputs.
//
// Each output has one accumulator, which starts at zero in each block and takes the block's inputs
// in ascending order; blocks are added in ascending order. So an output's bits depend on its own
// row alone, whatever the rows next to it, the instance that computed it, or the thread.
#pragma once

#include "include/linear.h"
#include "simd/vec.h"

namespace quire::QUIRE_ISA {

// Activations of a tile: [group][row][16 words], one cache line per row and group. A word is 32
// bits, what a step broadcasts: one float, or two bfloat16.
constexpr int group_words = 16;

// Outputs are held in registers two vectors a row: a panel (AVX-512) or a part of one.
constexpr int tile_vectors = 2;
constexpr int tile_width = tile_vectors * F32::lanes;
static_assert(LinearWeights::panel_width % tile_width == 0, "a panel is whole tiles");
constexpr int max_tile_rows = F32::lanes == 16 ? 12 : F32::lanes == 8 ? 6 : 4;

// Lines of a row's groups, `stride` words apart.
template <class Word>
struct Lines {
  Word* first;
  int64_t stride, count;
};

template <int rows>
using Sums = F32[rows][tile_vectors];

// Each row's broadcast word times two vectors of weights.
template <int rows>
inline void multiply_add(Sums<rows>& sums, const float* a, F32 w0, F32 w1) {
#pragma GCC unroll 16
  for (int m = 0; m < rows; ++m) {
    const float x = a[m * group_words];
    sums[m][0] = fma(x, w0, sums[m][0]);
    sums[m][1] = fma(x, w1, sums[m][1]);
  }
}

// Weights float or F16, activations float: a step is one input.
//
// A format's fill(x, n, lines, part) packs a row's next groups, of which n inputs are left in the
// row; it takes them groups_together at a time. Each row is packed as `parts` rows, of which one
// takes what those before it leave over.
template <class T>
struct FloatFormat {
  using Weight = T;
  using Word = float;
  static constexpr int tile_rows = max_tile_rows;
  static constexpr int64_t lines_worth_a_thread = 4096;  // to pack
  static constexpr int word_inputs = 1;
  static constexpr int step_words = 1;
  static constexpr int64_t groups_together = 1, parts = 1;

  template <int rows>
  static inline void step(Sums<rows>& sums, const Word* a, const T* w) {
    multiply_add<rows>(sums, a, load(w), load(w + F32::lanes));
  }

  static void fill(const float* x, int64_t n, const Lines<Word>& lines, int64_t) {
    for (int i = 0; i < group_words; i += F32::lanes)
      store(lines.first + i, n > i ? load_tail(x + i, n - i) : zero());
  }
};

// Weights bfloat16, activations float: a step is a pair of inputs, the even one first.
struct PairFormat {
  using Weight = BF16;
  using Word = float;
  static constexpr int tile_rows = max_tile_rows;
  static constexpr int64_t lines_worth_a_thread = 4096;  // to pack
  static constexpr int word_inputs = 1;
  static constexpr int step_words = 2;
  static constexpr int64_t groups_together = 1, parts = 1;

  template <int rows>
  static inline void step(Sums<rows>& sums, const Word* a, const BF16* w) {
    multiply_add<rows>(sums, a, load_even(w), load_even(w + 2 * F32::lanes));
    // Load the pairs again: kept, they would not fit in AVX2's 16 registers with six rows' sums.
    __asm__("" : "+r"(w));
    multiply_add<rows>(sums, a + 1, load_odd(w), load_odd(w + 2 * F32::lanes));
  }

  static void fill(const float* x, int64_t n, const Lines<Word>& lines, int64_t) {
    FloatFormat<float>::fill(x, n, lines, 0);
  }
};

#if defined(__AVX512F__)
// Weights and activations bfloat16: a word is a pair of inputs.
struct BrainWords {
  using Weight = BF16;
  using Word = uint32_t;
  static constexpr int64_t lines_worth_a_thread = 4096;  // to pack
  static constexpr int word_inputs = 2;
  static constexpr int step_words = 1;
  static constexpr int64_t groups_together = 1, parts = 1;

  static void fill(const float* x, int64_t n, const Lines<Word>& lines, int64_t) {
    auto* inputs = reinterpret_cast<BF16*>(lines.first);
    store(inputs, n > 0 ? load_tail(x, n) : zero());
    store(inputs + 16, n > 16 ? load_tail(x + 16, n - 16) : zero());
  }
};
#endif

#if defined(__AVX512BF16__)
// Sums float: a step is a pair of inputs in one instruction.
struct DotFormat : BrainWords {
  static constexpr int tile_rows = max_tile_rows;

  template <int rows>
  static inline void step(Sums<rows>& sums, const Word* a, const BF16* w) {
    const auto w0 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(w));
    const auto w1 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(w + 32));
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m) {
      const auto x =
          reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[m * group_words])));
      sums[m][0].v = _mm512_dpbf16_ps(sums[m][0].v, x, w0);
      sums[m][1].v = _mm512_dpbf16_ps(sums[m][1].v, x, w1);
    }
  }
};
using BrainFormat = DotFormat;
#else
using BrainFormat = PairFormat;
#endif

// One call of a tile.
template <class Format>
struct Tile {
  const typename Format::Word* activations;
  const typename Format::Weight* weights;
  int64_t rows;
  int64_t groups;
  bool first;               // whether this is the first block: `out` is written, else added to
  float* out;               // [row][panel_width]
  const char* prefetch;     // weights that a later tile will want
  int64_t prefetch_stride;  // bytes of them to ask for per step, at most two lines
};

// Weights of one step of a whole panel, in elements.
template <class Format>
constexpr int64_t step_weights =
    LinearWeights::panel_width * Format::step_words * Format::word_inputs;

template <class Format, int rows>
void run_tile(const Tile<Format>& tile) {
  constexpr int steps = group_words / Format::step_words;
  constexpr int64_t part_weights = tile_width * Format::step_words * Format::word_inputs;
  for (int part = 0; part < LinearWeights::panel_width / tile_width; ++part) {
    Sums<rows> sums;
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m) sums[m][0] = sums[m][1] = zero();
    const auto* a = tile.activations;
    const auto* w = tile.weights + part * part_weights;
    const char* ahead = tile.prefetch;
    for (int64_t group = 0; group < tile.groups; ++group) {
      for (int s = 0; s < steps; s += 4) {
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {
          if (part == 0) {
            __builtin_prefetch(ahead + t * tile.prefetch_stride);
            __builtin_prefetch(ahead + t * tile.prefetch_stride + 64);
          }
          Format::template step<rows>(sums, a + (s + t) * Format::step_words,
                                      w + t * step_weights<Format>);
        }
        w += 4 * step_weights<Format>;
        ahead += 4 * tile.prefetch_stride;
      }
      a += rows * group_words;
    }
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m) {
#pragma GCC unroll 2
      for (int v = 0; v < tile_vectors; ++v) {
        float* out = tile.out + m * LinearWeights::panel_width + part * tile_width + v * F32::lanes;
        store(out, tile.first ? sums[m][v] : load(out) + sums[m][v]);
      }
    }
  }
}

}  // namespace quire::QUIRE_ISA
