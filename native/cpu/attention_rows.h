// A few query rows against one piece of the context: scores, softmax, weighted sum of values.
//
// A piece is 256 absolute positions. What a row gets from it depends on the row, on the piece's K
// and V and on nothing else: not on the rows beside it, nor on the block size. Included by
// attention.cpp.
#pragma once

#include <float.h>
#include <math.h>

#include "simd/math.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t piece_positions = 256;
constexpr int lanes = F32::lanes;
constexpr int max_rows = 8;

// Where a piece lies: of each `lanes` positions, the first's element 0 of K (the next element
// `k_stride` further) and row of V (the next position `head_dim` further).
template <class T>
struct Piece {
  const T* k[piece_positions / lanes];
  const T* v[piece_positions / lanes];
  int64_t k_stride;
  int64_t head_dim;
};

// Positions of a piece that a row sees; none when begin >= end.
struct Span {
  int64_t begin, end;
};

// What rows got from a piece: sum of exp(score - highest) v, highest score, sum of exp.
struct Part {
  float* sums;  // (rows, H)
  float* highest;
  float* total;  // 0 when the row sees nothing of the piece
};

// Vectors side by side that leave room for R rows of accumulators in the registers.
constexpr int columns_for(int rows) {
  const int room = (lanes == 16 ? 16 : 8) / rows;
  return room >= 8 ? 8 : room >= 4 ? 4 : room >= 2 ? 2 : 1;
}

// s[r, c] = q[r, :] . k[:, c] for C vectors of positions.
template <int R, int C, class T>
void score_block(const float* q, int64_t head_dim, const T* const* k, int64_t stride, float* s) {
  F32 sums[R][C];
  const T* at[C];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    at[c] = k[c];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r][c] = zero();
  }
  for (int64_t i = 0; i < head_dim; ++i) {
    F32 keys[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      keys[c] = load(at[c]);
      at[c] += stride;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F32 query = set1(q[r * head_dim + i]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) sums[r][c] = fma(query, keys[c], sums[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(s + r * piece_positions + c * lanes, sums[r][c]);
}

// Scores of vectors [first, end) of the piece.
template <int R, int C, class T>
void score(const float* q, const Piece<T>& piece, int64_t first, int64_t end, float* s) {
  for (; end - first >= C; first += C)
    score_block<R, C>(q, piece.head_dim, piece.k + first, piece.k_stride, s + first * lanes);
  if constexpr (C > 1)
    if (first < end) score<R, C / 2>(q, piece, first, end, s);
}

// Turn the scores of a span into exp(score - highest); returns their sum. Positions outside become
// 0 up to whole vectors. A score of -inf counts nothing; NaN stays.
float exponentials(float* s, Span span, float* highest) {
  const int64_t first = span.begin / lanes * lanes, end = ceil_div(span.end, lanes) * lanes;
  for (int64_t i = first; i < span.begin; ++i) s[i] = -INFINITY;
  for (int64_t i = span.end; i < end; ++i) s[i] = -INFINITY;
  F32 best = set1(-INFINITY);
  for (int64_t i = first; i < end; i += lanes) best = max(load(s + i), best);
  *highest = max(best);
  const F32 shift = set1(*highest);
  F32 total = zero();
  for (int64_t i = first; i < end; i += lanes) {
    const F32 x = load(s + i);
    const F32 e = select(less(x, set1(-FLT_MAX)), zero(), exp(x - shift));
    store(s + i, e);
    total = total + e;
  }
  return sum(total);
}

// sums[r, column..] += sum_j e[r, j] v[j, column..] over the span, positions rising.
template <int R, int C, class T>
void value_block(const float* e, Span span, const Piece<T>& piece, int64_t column, float* sums) {
  const int64_t dim = piece.head_dim;
  F32 x[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) x[r][c] = load(sums + r * dim + column + c * lanes);
  for (int64_t j = span.begin; j < span.end;) {
    const int64_t stop = smaller(span.end, (j / lanes + 1) * lanes);
    const T* v = piece.v[j / lanes] + j % lanes * dim + column;
    for (; j < stop; ++j, v += dim) {
      F32 values[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) values[c] = load(v + c * lanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F32 weight = set1(e[r * piece_positions + j]);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) x[r][c] = fma(weight, values[c], x[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(sums + r * dim + column + c * lanes, x[r][c]);
}

// The last head_dim % lanes columns.
template <class T>
void value_tail(const float* e, Span span, const Piece<T>& piece, int64_t column, float* sums) {
  const int n = static_cast<int>(piece.head_dim - column);
  F32 x = load_partial(sums + column, n);
  for (int64_t j = span.begin; j < span.end; ++j) {
    const T* v = piece.v[j / lanes] + j % lanes * piece.head_dim + column;
    x = fma(set1(e[j]), load_partial(v, n), x);
  }
  store_partial(sums + column, x, n);
}

template <int R, int C, class T>
void add_values(const float* e, Span span, const Piece<T>& piece, int64_t column, float* sums) {
  for (; piece.head_dim - column >= C * lanes; column += C * lanes)
    value_block<R, C>(e, span, piece, column, sums);
  if constexpr (C > 1) {
    if (column < piece.head_dim) add_values<R, C / 2>(e, span, piece, column, sums);
  } else if (column < piece.head_dim) {
    for (int r = 0; r < R; ++r)
      value_tail(e + r * piece_positions, span, piece, column, sums + r * piece.head_dim);
  }
}

// R rows whose spans may differ: where all see a position they share its V, in front of that and
// behind it each row goes alone. `s` is (R, 256) of scratch.
template <int R, class T>
void attend_rows(const float* q, const Span* spans, const Piece<T>& piece, float* s, Part part) {
  Span any{piece_positions, 0}, all{0, piece_positions};
  for (int r = 0; r < R; ++r) {
    part.total[r] = 0.0f;
    all = {larger(all.begin, spans[r].begin), smaller(all.end, spans[r].end)};
    if (spans[r].begin < spans[r].end)
      any = {smaller(any.begin, spans[r].begin), larger(any.end, spans[r].end)};
  }
  if (any.begin >= any.end) return;
  score<R, columns_for(R)>(q, piece, any.begin / lanes, ceil_div(any.end, lanes), s);
  const int64_t dim = piece.head_dim;
  const bool shared = all.begin < all.end;
  for (int r = 0; r < R; ++r) {
    if (spans[r].begin >= spans[r].end) continue;
    float *row = s + r * piece_positions, *sums = part.sums + r * dim;
    part.total[r] = exponentials(row, spans[r], part.highest + r);
    for (int64_t i = 0; i < dim; ++i) sums[i] = 0.0f;
    const Span before{spans[r].begin, shared ? all.begin : spans[r].end};
    if (before.begin < before.end) add_values<1, columns_for(1)>(row, before, piece, 0, sums);
  }
  if (!shared) return;
  add_values<R, columns_for(R)>(s, all, piece, 0, part.sums);
  for (int r = 0; r < R; ++r) {
    const Span after{all.end, spans[r].end};
    if (after.begin < after.end)
      add_values<1, columns_for(1)>(s + r * piece_positions, after, piece, 0, part.sums + r * dim);
  }
}

template <class T>
void attend_some(int64_t rows, const float* q, const Span* spans, const Piece<T>& piece, float* s,
                 Part part) {
  switch (rows) {
    case 1:
      return attend_rows<1>(q, spans, piece, s, part);
    case 2:
      return attend_rows<2>(q, spans, piece, s, part);
    case 3:
      return attend_rows<3>(q, spans, piece, s, part);
    case 4:
      return attend_rows<4>(q, spans, piece, s, part);
    case 5:
      return attend_rows<5>(q, spans, piece, s, part);
    case 6:
      return attend_rows<6>(q, spans, piece, s, part);
    case 7:
      return attend_rows<7>(q, spans, piece, s, part);
    default:
      return attend_rows<8>(q, spans, piece, s, part);
  }
}

// Add a piece's part of one row to what the row has so far; parts come in the order of positions.
void merge(const float* sums, float highest, float total, int64_t head_dim, float* row_sums,
           float* row_highest, float* row_total) {
  if (total == 0.0f) return;
  if (*row_total == 0.0f) {
    memcpy(row_sums, sums, static_cast<size_t>(head_dim) * sizeof(float));
    *row_highest = highest;
    *row_total = total;
    return;
  }
  const float top = larger(*row_highest, highest);
  float factors[lanes];
  store(factors, exp(set1(*row_highest - top)));
  const float old = factors[0];
  store(factors, exp(set1(highest - top)));
  const float added = factors[0];
  for (int64_t i = 0; i < head_dim; i += lanes) {
    const int64_t n = head_dim - i;
    const F32 x = load_tail(row_sums + i, n) * set1(old);
    store_tail(row_sums + i, fma(load_tail(sums + i, n), set1(added), x), n);
  }
  *row_highest = top;
  *row_total = *row_total * old + total * added;
}

}  // namespace
}  // namespace quire::QUIRE_ISA
