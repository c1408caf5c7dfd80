// Many query rows against one piece of a bfloat16 cache of latents, by dot products of pairs, from
// where its rows lie.
//
//   score    lanes are query rows, turned round once a piece; of each position's row a pair of
//            elements is one word, as it lies in memory
//   values   lanes are columns; the rows of two positions become pairs in registers
//
// So nothing is unpacked, and few heads pay no more for a byte than many. Sums are those of
// attention_dots.h, in the same order.
#pragma once

#include "cpu/attention_dots.h"

namespace quire::QUIRE_ISA {
namespace {

#if defined(QUIRE_DOTS)

// Positions that are scored together: as many sums as hide what a product takes.
constexpr int score_positions = 8;

struct LatentRows {
  using Word = uint32_t;
  using Vector = Pairs;
  static constexpr int64_t word_positions = 2;
  struct Whole {};
  static constexpr Whole all{};

  const BF16** rows;  // (256,): of each position that is seen
  uint32_t* turned;   // (P, lanes): queries
  int64_t head_dim, value_dim;

  // In the memory of a panel.
  explicit LatentRows(Panel memory)
      : rows(reinterpret_cast<const BF16**>(memory.k)),
        turned(reinterpret_cast<uint32_t*>(memory.v)),
        head_dim(memory.head_dim),
        value_dim(memory.value_dim) {}
  // Rows must be whole pairs, and as long as whole tiles of their values.
  static bool holds(Panel memory) {
    return memory.head_dim % 2 == 0 && Panel::columns(memory.value_dim) <= memory.head_dim;
  }

  int64_t words() const { return head_pairs(head_dim); }
  template <class Function>
  static void each_run(Span span, const Function& f) {
    each_pair_run(span, f);
  }
  static float weights(float* s, Span span, Scales scales, float* highest) {
    return dot_weights(s, span, scales.cap, highest);
  }
};

inline Pairs keep(Pairs x, LatentRows::Whole) { return x; }

struct LatentValues {
  const BF16* const* rows;
  int64_t column;

  template <int C, class Share>
  [[gnu::always_inline]] void load(Pairs (&x)[C], int64_t j, Share share) const {
    const BF16 *low = rows[2 * j] + column, *high = rows[2 * j + 1] + column;
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) x[c] = keep(interleave(low + c * lanes, high + c * lanes), share);
  }
};

inline LatentValues values(const LatentRows& panel, int64_t column) { return {panel.rows, column}; }

// s (positions, lanes): scores of `lanes` rows of queries, turned; `next` is fetched meanwhile.
[[gnu::noinline]] void score_latents(const uint32_t* q, int64_t pairs, const BF16* const* rows,
                                     const BF16* const* next, float* s) {
  constexpr int64_t line = 64 / sizeof(uint32_t);
  F32 sums[score_positions];
  const BF16* k[score_positions];
#pragma GCC unroll 8
  for (int i = 0; i < score_positions; ++i) sums[i] = zero(), k[i] = rows[i];
  for (int64_t first = 0; first < pairs; first += line) {
    for (int i = 0; i < score_positions; ++i) __builtin_prefetch(next[i] + 2 * first, 0, 2);
    for (int64_t pair = first; pair < smaller(first + line, pairs); ++pair) {
      const Pairs queries = load_pairs(q + pair * lanes);
#pragma GCC unroll 8
      for (int i = 0; i < score_positions; ++i) {
        uint32_t word;
        memcpy(&word, k[i] + 2 * pair, sizeof(word));
        sums[i] = fma(word, queries, sums[i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < score_positions; ++i) store(s + i * lanes, sums[i]);
}

void score_rows(const LatentRows& panel, const PanelRows& rows, int64_t count, Span whole) {
  const int64_t pairs = panel.words();
  const Span region{whole.begin / lanes * lanes, ceil_div(whole.end, lanes) * lanes};
  // Positions that no row sees are scored, too, and need an address.
  for (int64_t j = region.begin; j < whole.begin; ++j) panel.rows[j] = panel.rows[whole.begin];
  for (int64_t j = whole.end; j < region.end; ++j) panel.rows[j] = panel.rows[whole.end - 1];
  for (int64_t row = 0; row < count; row += lanes) {
    const int64_t heads = smaller<int64_t>(lanes, count - row);
    const auto* q = reinterpret_cast<const uint32_t*>(rows.q) + row * pairs;
    turn_round(q, pairs * sizeof(uint32_t), pairs, panel.turned, lanes);
    const Span seen = rows.seen(row, heads).within(region);
    for (int64_t j = seen.begin / lanes * lanes; j < seen.end; j += lanes) {
      float square[lanes * lanes];
      for (int64_t i = 0; i < lanes; i += score_positions) {
        const int64_t next = smaller(j + i + score_positions, region.end - score_positions);
        score_latents(panel.turned, pairs, panel.rows + j + i, panel.rows + next,
                      square + i * lanes);
      }
      turn_round(square, sizeof(square) / lanes, heads, rows.s + row * piece_positions + j,
                 piece_positions);
    }
  }
}

#endif

}  // namespace
}  // namespace quire::QUIRE_ISA
