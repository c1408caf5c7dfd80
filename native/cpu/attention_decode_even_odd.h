// Tiles of attention_decode.h over a bfloat16 cache with the bits of attention_in_tiles.h.
//
// Queries and weights are floats rounded to bfloat16; of each 32 elements, or 32 absolute
// positions, even and odd products are added up apart.
#pragma once

#include "cpu/attention_decode.h"
#include "cpu/attention_in_tiles.h"

namespace quire::QUIRE_ISA {
namespace {

#if defined(QUIRE_MATRIX_TILES)

// sums[r, c] += x[r, i] y[i, c] of up to 32 i in the tiles' order; load_row(i, vectors) loads y[i].
template <int R, int C, class LoadRow>
[[gnu::always_inline]] inline void add_even_odd(F32 (&sums)[R][C], const float* x, int64_t x_stride,
                                                int64_t first, int64_t end,
                                                const LoadRow& load_row) {
  F32 even[R][C] = {}, odd[R][C] = {};
  const auto add = [&](F32(&part)[R][C], int64_t i) {
    F32 y[C];
    load_row(i, y);
    add_products(part, x + i, x_stride, y);
  };
  if (first % 2) add(odd, first), ++first;
  for (; first + 1 < end; first += 2) {
    add(even, first);
    add(odd, first + 1);
  }
  if (first < end) add(even, first);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sums[r][c] = sums[r][c] + (even[r][c] + odd[r][c]);
}

struct EvenOddTiles {
  using Word = float;
  using Mode = FlushDenormals;

  // Room for even sums, odd sums and sums.
  static constexpr int columns(int rows) { return rows <= 2 ? 4 : rows <= 4 ? 2 : 1; }
  static int64_t words(int64_t head_dim) { return head_dim; }

  template <int R, int C>
  [[gnu::always_inline]] static void score(const float* q, int64_t head_dim,
                                           const Strip<BF16, C>& strip, int64_t stride,
                                           F32 (&sums)[R][C]) {
    const int64_t within_line = larger<int64_t>(1, 32 / stride) - 1;  // a power of 2, - 1
    for (int64_t i = 0; i < head_dim; i += step_positions)
      add_even_odd(sums, q, head_dim, i, smaller(i + step_positions, head_dim),
                   [&](int64_t row, F32(&keys)[C]) {
#pragma GCC unroll 8
                     for (int c = 0; c < C; ++c) {
                       if ((row & within_line) == 0) prefetch(strip.next[c] + row * stride);
                       keys[c] = load(strip.k[c] + row * stride);
                     }
                   });
  }

  static float weights(float* e, Span span, Scales scales, float* highest) {
    return pair_weights(e, span, span, scales.cap, highest, [=](int64_t i, F32 x, F32 y) {
      const F32 low = rounded(x), high = rounded(y);
      store(e + i, low);
      store(e + i + lanes, high);
      return low + high;
    });
  }

  // A strip is whole steps.
  template <bool Tail, int R, int C>
  [[gnu::always_inline]] static void add_values(const float* e, Span span, const Piece<BF16>& piece,
                                                int64_t head, int64_t column, F32 (&sums)[R][C]) {
    const int64_t dim = piece.head_dim;
    Values<BF16> at(piece, head, span.begin, column);
    for (int64_t begin = span.begin; begin < span.end;) {
      const int64_t end = smaller((begin / step_positions + 1) * step_positions, span.end);
      add_even_odd(sums, e, piece_positions, begin, end, [&](int64_t j, F32(&values)[C]) {
        if (j % lanes == 0) at = Values<BF16>(piece, head, j, column);
        at.template fetch<C>();
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c)
          values[c] =
              Tail ? load_partial(at.v, static_cast<int>(dim - column)) : load(at.v + c * lanes);
        at.advance(dim);
      });
      begin = end;
    }
  }
};

static_assert(strip_positions % step_positions == 0, "a strip is whole steps");

#endif

}  // namespace
}  // namespace quire::QUIRE_ISA
