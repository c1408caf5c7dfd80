// As attention_decode.h, over a bfloat16 cache by dot products of pairs (attention_dots.h), which
// are put together in registers: two rows of K or V become one register of pairs by one
// permutation.
#pragma once

#include "cpu/attention_decode.h"
#include "cpu/attention_dots.h"

namespace quire::QUIRE_ISA {
namespace {

#if defined(QUIRE_DOTS)

// s[r, c] = q[r, :] . k[:, c] for C vectors of positions; `next` is fetched to the same extent.
template <int R, int C>
void score_pair_tile(const uint32_t* q, int64_t head_dim, const BF16* const* k, int64_t stride,
                     const BF16* const* next, float* s) {
  const int64_t pairs = head_pairs(head_dim);
  const bool one_line = 4 * stride <= 64;  // bytes of a pair of rows
  F32 sums[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sums[r][c] = zero();
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t row = 2 * i * stride;
    Pairs keys[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      prefetch(next[c] + row);
      if (!one_line) prefetch(next[c] + row + stride);
      keys[c] =
          2 * i + 1 < head_dim ? interleave(k[c] + row, k[c] + row + stride) : only_low(k[c] + row);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Pairs query = set1_pair(q[r * pairs + i]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) sums[r][c] = dot(query, keys[c], sums[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(s + r * piece_positions + c * lanes, sums[r][c]);
}

// Scores of vectors [first, end) of the piece, R rows for each head.
template <int R, int C>
void score_in_pairs(const uint32_t* q, const Piece<BF16>& piece, int64_t first, int64_t end,
                    float* s) {
  const int64_t row_pairs = head_pairs(piece.head_dim);
  for (; end - first >= C; first += C)
    for (int64_t head = 0; head < piece.heads; ++head) {
      const Strip<BF16, C> strip(piece, head, first, end);
      score_pair_tile<R, C>(q + head * R * row_pairs, piece.head_dim, strip.k, piece.k_stride,
                            strip.next, s + head * R * piece_positions + first * lanes);
    }
  if constexpr (C > 1)
    if (first < end) score_in_pairs<R, C / 2>(q, piece, first, end, s);
}

// sums[r, column..] += sum_j e[r, j] v[j, column..] over a strip's pairs, of which the first and
// the last may have one position only. With Tail, fewer columns than a vector has are left.
template <int R, int C, bool Tail>
void value_pair_tile(const uint32_t* e, Span span, const Piece<BF16>& piece, int64_t head,
                     int64_t column, Part part) {
  const int64_t dim = piece.head_dim, offset = head * piece.head_size;
  const int n = static_cast<int>(Tail ? dim - column : lanes);
  const bool last = head + 1 == piece.heads;
  F32 x[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) x[r][c] = load(part.sums + r * part.stride + column + c * lanes);
  each_pair_run(span, [&](int64_t first, int64_t end, uint32_t halves) {
    for (int64_t j = first; j < end;) {
      const int64_t vector = 2 * j / lanes, begin = 2 * j % lanes;
      const int64_t stop = smaller(end, (vector + 1) * lanes / 2);
      const BF16* v = piece.v[vector] + offset + begin * dim + column;
      const bool more = vector + strip_vectors < piece_positions / lanes;
      const BF16* ahead = !last  ? v + piece.head_size
                          : more ? piece.v[vector + strip_vectors] + begin * dim + column
                                 : v;
      for (; j < stop; ++j, v += 2 * dim, ahead += 2 * dim) {
#pragma GCC unroll 8
        for (int c = 0; c < C; c += 2) {
          prefetch(ahead + c * lanes);
          prefetch(ahead + dim + c * lanes);
        }
        Pairs values[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
          const BF16* at = v + c * lanes;
          values[c] =
              keep(Tail ? interleave_partial(at, at + dim, n) : interleave(at, at + dim), halves);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const Pairs weight = set1_pair(e[r * piece_positions + j]);
#pragma GCC unroll 8
          for (int c = 0; c < C; ++c) x[r][c] = dot(weight, values[c], x[r][c]);
        }
      }
    }
  });
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(part.sums + r * part.stride + column + c * lanes, x[r][c]);
}

template <int R, int C>
void add_columns_in_pairs(const uint32_t* e, Span span, const Piece<BF16>& piece, int64_t head,
                          int64_t column, Part part) {
  for (; piece.head_dim - column >= C * lanes; column += C * lanes)
    value_pair_tile<R, C, false>(e, span, piece, head, column, part);
  if (column >= piece.head_dim) return;
  if constexpr (C > 1)
    add_columns_in_pairs<R, C / 2>(e, span, piece, head, column, part);
  else
    value_pair_tile<R, 1, true>(e, span, piece, head, column, part);
}

// R rows for each head. `s` is (heads * R, 256) of scratch.
template <int R>
void attend_heads_in_pairs(const uint32_t* q, Span span, const Piece<BF16>& piece, float* s,
                           Part part) {
  score_in_pairs<R, columns_for(R)>(q, piece, span.begin / lanes, ceil_div(span.end, lanes), s);
  for (int64_t row = 0; row < piece.heads * R; ++row) {
    fetch_values<R>(piece, span.begin, row);
    part.total[row] = dot_weights(s + row * piece_positions, span, part.highest + row);
    memset(part.sums + row * part.stride, 0, static_cast<size_t>(part.stride) * sizeof(float));
  }
  const auto* e = reinterpret_cast<const uint32_t*>(s);
  for (int64_t begin = span.begin; begin < span.end;) {
    const int64_t end = (begin / strip_positions + 1) * strip_positions;
    const Span strip = span.within({begin, end});
    for (int64_t head = 0; head < piece.heads; ++head) {
      const int64_t row = head * R;
      add_columns_in_pairs<R, columns_for(R)>(
          e + row * piece_positions, strip, piece, head, 0,
          {part.sums + row * part.stride, nullptr, nullptr, part.stride});
    }
    begin = end;
  }
}

#endif

}  // namespace
}  // namespace quire::QUIRE_ISA
