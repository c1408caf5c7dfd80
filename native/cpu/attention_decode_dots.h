// Tiles of attention_decode.h over a bfloat16 cache: dot products of pairs (attention_dots.h),
// which are put together in registers. Two rows of K or V become one register of pairs by one
// permutation.
#pragma once

#include "cpu/attention_decode.h"
#include "cpu/attention_dots.h"

namespace quire::QUIRE_ISA {
namespace {

#if defined(QUIRE_DOTS)

struct DotTiles {
  using Word = uint32_t;
  struct Mode {};

  static constexpr int columns(int rows) { return FloatTiles<BF16>::columns(rows); }
  static int64_t words(int64_t head_dim) { return head_pairs(head_dim); }

  template <int R, int C>
  [[gnu::always_inline]] static void score(const uint32_t* q, int64_t head_dim,
                                           const Strip<BF16, C>& strip, int64_t stride,
                                           F32 (&sums)[R][C]) {
    const int64_t pairs = head_pairs(head_dim);
    const bool one_line = 4 * stride <= 64;  // bytes of a pair of rows
    for (int64_t i = 0; i < pairs; ++i) {
      const int64_t row = 2 * i * stride;
      Pairs keys[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        const BF16* k = strip.k[c] + row;
        prefetch(strip.next[c] + row);
        if (!one_line) prefetch(strip.next[c] + row + stride);
        keys[c] = 2 * i + 1 < head_dim ? interleave(k, k + stride) : only_low(k);
      }
      add_products(sums, q + i, pairs, keys);
    }
  }

  static float weights(float* s, Span span, Scales scales, float* highest) {
    return dot_weights(s, span, scales.cap, highest);
  }

  // Of the strip's pairs the first and the last may have one position only.
  template <bool Tail, int R, int C>
  [[gnu::always_inline]] static void add_values(const uint32_t* e, Span span,
                                                const Piece<BF16>& piece, int64_t head,
                                                int64_t column, F32 (&sums)[R][C]) {
    const int64_t dim = piece.head_dim;
    each_pair_run(span, [&](int64_t first, int64_t end, uint32_t halves) {
      for (int64_t j = first; j < end;) {
        const int64_t stop = smaller(end, (2 * j / lanes + 1) * lanes / 2);
        for (Values<BF16> at(piece, head, 2 * j, column); j < stop; ++j, at.advance(2 * dim)) {
          at.template fetch<C>();
          at.template fetch<C>(dim);
          Pairs values[C];
#pragma GCC unroll 8
          for (int c = 0; c < C; ++c) {
            const BF16* v = at.v + c * lanes;
            values[c] = keep(Tail ? interleave_partial(v, v + dim, static_cast<int>(dim - column))
                                  : interleave(v, v + dim),
                             halves);
          }
          add_products(sums, e + j, piece_positions, values);
        }
      }
    });
  }
};

#endif

}  // namespace
}  // namespace quire::QUIRE_ISA
