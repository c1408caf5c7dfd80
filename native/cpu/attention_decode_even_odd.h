// As attention_decode.h, over a bfloat16 cache with the bits of attention_in_tiles.h.
//
// Queries and weights are floats rounded to bfloat16; of each 32 elements, or 32 absolute
// positions, even and odd products are added up apart.
#pragma once

#include "cpu/attention_decode.h"
#include "cpu/attention_in_tiles.h"

namespace quire::QUIRE_ISA {
namespace {

#if defined(QUIRE_MATRIX_TILES)

// Vectors side by side that leave room for R rows of even sums, odd sums and sums.
constexpr int even_odd_columns(int rows) { return rows <= 2 ? 4 : rows <= 4 ? 2 : 1; }

// sums[r, c] += x[r, i] y[i, c] of up to 32 i in the tiles' order; load_row(i, vectors) loads y[i].
template <int R, int C, class LoadRow>
inline void add_even_odd(F32 (&sums)[R][C], const float* x, int64_t x_stride, int64_t first,
                         int64_t end, const LoadRow& load_row) {
  F32 parts[2][R][C];
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) parts[odd][r][c] = zero();
  const auto add = [&](F32(&part)[R][C], int64_t i) {
    F32 y[C];
    load_row(i, y);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) part[r][c] = fma(x[r * x_stride + i], y[c], part[r][c]);
  };
  if (first % 2) add(parts[1], first), ++first;
  for (; first + 1 < end; first += 2) {
    add(parts[0], first);
    add(parts[1], first + 1);
  }
  if (first < end) add(parts[0], first);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sums[r][c] = sums[r][c] + (parts[0][r][c] + parts[1][r][c]);
}

// Scores of vectors [first, end) of the piece, R rows for each head.
template <int R, int C>
void score_even_odd(const float* q, const Piece<BF16>& piece, int64_t first, int64_t end,
                    float* s) {
  const int64_t dim = piece.head_dim, stride = piece.k_stride;
  const int64_t within_line = larger<int64_t>(1, 32 / stride) - 1;  // a power of 2, - 1
  for (; end - first >= C; first += C)
    for (int64_t head = 0; head < piece.heads; ++head) {
      const Strip<BF16, C> strip(piece, head, first, end);
      F32 sums[R][C] = {};
      for (int64_t i = 0; i < dim; i += step_positions)
        add_even_odd<R, C>(sums, q + head * R * dim, dim, i, smaller(i + step_positions, dim),
                           [&](int64_t row, F32(&keys)[C]) {
#pragma GCC unroll 8
                             for (int c = 0; c < C; ++c) {
                               if ((row & within_line) == 0) prefetch(strip.next[c] + row * stride);
                               keys[c] = load(strip.k[c] + row * stride);
                             }
                           });
      float* to = s + head * R * piece_positions + first * lanes;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) store(to + r * piece_positions + c * lanes, sums[r][c]);
    }
  if constexpr (C > 1)
    if (first < end) score_even_odd<R, C / 2>(q, piece, first, end, s);
}

// sums[r, column..] += sum_j e[r, j] v[j, column..] over a strip of whole steps. With Tail, fewer
// columns than a vector has are left.
template <int R, int C, bool Tail>
void value_even_odd(const float* e, Span span, const Piece<BF16>& piece, int64_t head,
                    int64_t column, Part part) {
  const int64_t dim = piece.head_dim;
  const int n = static_cast<int>(Tail ? dim - column : lanes);
  const bool last = head + 1 == piece.heads;
  F32 x[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) x[r][c] = load(part.sums + r * part.stride + column + c * lanes);
  const BF16 *v, *ahead;
  const auto find = [&](int64_t j) {
    const int64_t vector = j / lanes, at = column + j % lanes * dim;
    const int64_t more = smaller(vector + strip_vectors, piece_positions / lanes - 1);
    v = piece.v[vector] + head * piece.head_size + at;
    ahead = last ? piece.v[more] + at : v + piece.head_size;
  };
  find(span.begin);
  for (int64_t begin = span.begin; begin < span.end;) {
    const int64_t end = smaller((begin / step_positions + 1) * step_positions, span.end);
    add_even_odd<R, C>(x, e, piece_positions, begin, end, [&](int64_t j, F32(&values)[C]) {
      if (j % lanes == 0) find(j);
#pragma GCC unroll 8
      for (int c = 0; c < C; c += 2) prefetch(ahead + c * lanes);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c)
        values[c] = Tail ? load_partial(v + c * lanes, n) : load(v + c * lanes);
      v += dim, ahead += dim;
    });
    begin = end;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(part.sums + r * part.stride + column + c * lanes, x[r][c]);
}

template <int R, int C>
void add_columns_even_odd(const float* e, Span span, const Piece<BF16>& piece, int64_t head,
                          int64_t column, Part part) {
  for (; piece.head_dim - column >= C * lanes; column += C * lanes)
    value_even_odd<R, C, false>(e, span, piece, head, column, part);
  if (column >= piece.head_dim) return;
  if constexpr (C > 1)
    add_columns_even_odd<R, C / 2>(e, span, piece, head, column, part);
  else
    value_even_odd<R, 1, true>(e, span, piece, head, column, part);
}

// R rows for each head. `s` is (heads * R, 256) of scratch.
template <int R>
void attend_heads_even_odd(const float* q, Span span, const Piece<BF16>& piece, float* s,
                           Part part) {
  constexpr int columns = even_odd_columns(R);
  {
    const FlushDenormals flush;
    score_even_odd<R, columns>(q, piece, span.begin / lanes, ceil_div(span.end, lanes), s);
  }
  for (int64_t row = 0; row < piece.heads * R; ++row) {
    fetch_values<R>(piece, span.begin, row);
    float* e = s + row * piece_positions;
    part.total[row] = pair_weights(e, span, span, part.highest + row, [=](int64_t i, F32 x, F32 y) {
      const F32 low = rounded(x), high = rounded(y);
      store(e + i, low);
      store(e + i + lanes, high);
      return low + high;
    });
    memset(part.sums + row * part.stride, 0, static_cast<size_t>(part.stride) * sizeof(float));
  }
  const FlushDenormals flush;
  for (int64_t begin = span.begin; begin < span.end;) {
    const int64_t end = (begin / strip_positions + 1) * strip_positions;
    const Span strip = span.within({begin, end});
    for (int64_t head = 0; head < piece.heads; ++head) {
      const int64_t row = head * R;
      add_columns_even_odd<R, columns>(
          s + row * piece_positions, strip, piece, head, 0,
          {part.sums + row * part.stride, nullptr, nullptr, part.stride});
    }
    begin = end;
  }
}

static_assert(strip_positions % step_positions == 0, "a strip is whole steps");

#endif

}  // namespace
}  // namespace quire::QUIRE_ISA
