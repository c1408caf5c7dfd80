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

// Where a piece lies for the first of `heads` KV heads: of each `lanes` positions, the first's
// element 0 of K (the next element `k_stride` further) and row of V (the next position `head_dim`
// further). The next head's are `head_size` further. `run` positions of V lie side by side.
template <class T>
struct Piece {
  const T* k[piece_positions / lanes];
  const T* v[piece_positions / lanes];
  int64_t k_stride, head_dim;
  int64_t heads, head_size, run;

  // With several heads the next one's K or V is fetched while this one's is multiplied; behind the
  // last K head lies the first V head.
  int64_t ahead() const { return heads > 1 ? head_size : 0; }
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

void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

// s[r, c] = q[r, :] . k[:, c] for C vectors of positions, `offset` elements behind k. What lies
// `ahead` elements further is fetched, unless 0.
template <int R, int C, class T>
void score_block(const float* q, int64_t head_dim, const T* const* k, int64_t offset,
                 int64_t stride, int64_t ahead, float* s) {
  constexpr int64_t per_line = larger<int64_t>(1, 64 / (lanes * static_cast<int64_t>(sizeof(T))));
  F32 sums[R][C];
  const T* at[C];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    at[c] = k[c] + offset;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r][c] = zero();
  }
  for (int64_t i = 0; i < head_dim; ++i) {
    if (ahead != 0 && i % per_line == 0)
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) prefetch(at[c] + ahead);
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

// Scores of vectors [first, end) of the piece, R rows for each head. Heads go inside, because in
// memory they are neighbours: a cold cache is then read in long runs.
template <int R, int C, class T>
void score(const float* q, const Piece<T>& piece, int64_t first, int64_t end, float* s) {
  for (; end - first >= C; first += C)
    for (int64_t head = 0; head < piece.heads; ++head)
      score_block<R, C>(q + head * R * piece.head_dim, piece.head_dim, piece.k + first,
                        head * piece.head_size, piece.k_stride, piece.ahead(),
                        s + head * R * piece_positions + first * lanes);
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
void value_block(const float* e, Span span, const Piece<T>& piece, int64_t offset, int64_t column,
                 float* sums) {
  constexpr int per_line = larger<int>(1, 64 / (lanes * static_cast<int>(sizeof(T))));
  const int64_t dim = piece.head_dim, ahead = piece.ahead();
  F32 x[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) x[r][c] = load(sums + r * dim + column + c * lanes);
  for (int64_t j = span.begin; j < span.end;) {
    const int64_t stop = smaller(span.end, (j / lanes + 1) * lanes);
    const T* v = piece.v[j / lanes] + offset + j % lanes * dim + column;
    for (; j < stop; ++j, v += dim) {
      if (ahead != 0)
#pragma GCC unroll 8
        for (int c = 0; c < C; c += per_line) prefetch(v + c * lanes + ahead);
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
void value_tail(const float* e, Span span, const Piece<T>& piece, int64_t offset, int64_t column,
                float* sums) {
  const int n = static_cast<int>(piece.head_dim - column);
  F32 x = load_partial(sums + column, n);
  for (int64_t j = span.begin; j < span.end; ++j) {
    const T* v = piece.v[j / lanes] + offset + j % lanes * piece.head_dim + column;
    x = fma(set1(e[j]), load_partial(v, n), x);
  }
  store_partial(sums + column, x, n);
}

template <int R, int C, class T>
void add_columns(const float* e, Span span, const Piece<T>& piece, int64_t offset, int64_t column,
                 float* sums) {
  for (; piece.head_dim - column >= C * lanes; column += C * lanes)
    value_block<R, C>(e, span, piece, offset, column, sums);
  if constexpr (C > 1) {
    if (column < piece.head_dim) add_columns<R, C / 2>(e, span, piece, offset, column, sums);
  } else if (column < piece.head_dim) {
    for (int r = 0; r < R; ++r)
      value_tail(e + r * piece_positions, span, piece, offset, column, sums + r * piece.head_dim);
  }
}

// Add the values of a span to R rows of the head.
template <int R, class T>
void add_values(const float* e, Span span, const Piece<T>& piece, int64_t head, float* sums) {
  if (span.begin < span.end)
    add_columns<R, columns_for(R)>(e, span, piece, head * piece.head_size, 0, sums);
}

// R rows for each head. Spans of rows may differ, those of heads do not: where all rows see a
// position they share its V, in front of that and behind it each row goes alone. `s` is
// (heads * R, 256) of scratch.
template <int R, class T>
void attend_rows(const float* q, const Span* spans, const Piece<T>& piece, float* s, Part part) {
  Span any{piece_positions, 0}, all{0, piece_positions};
  for (int r = 0; r < R; ++r) {
    all = {larger(all.begin, spans[r].begin), smaller(all.end, spans[r].end)};
    if (spans[r].begin < spans[r].end)
      any = {smaller(any.begin, spans[r].begin), larger(any.end, spans[r].end)};
  }
  if (all.begin >= all.end) all = {piece_positions, piece_positions};
  score<R, columns_for(R)>(q, piece, any.begin / lanes, ceil_div(any.end, lanes), s);
  const int64_t dim = piece.head_dim;
  for (int64_t row = 0; row < piece.heads * R; ++row) {
    const Span span = spans[row % R];
    part.total[row] = 0.0f;
    if (span.begin >= span.end) continue;
    float *e = s + row * piece_positions, *sums = part.sums + row * dim;
    part.total[row] = exponentials(e, span, part.highest + row);
    for (int64_t i = 0; i < dim; ++i) sums[i] = 0.0f;
    add_values<1>(e, {span.begin, smaller(span.end, all.begin)}, piece, row / R, sums);
  }
  for (int64_t begin = all.begin; begin < all.end;) {
    const int64_t end = smaller(all.end, (begin / piece.run + 1) * piece.run);
    for (int64_t head = 0; head < piece.heads; ++head)
      add_values<R>(s + head * R * piece_positions, {begin, end}, piece, head,
                    part.sums + head * R * dim);
    begin = end;
  }
  for (int64_t row = 0; row < piece.heads * R; ++row) {
    const Span after{larger(spans[row % R].begin, all.end), spans[row % R].end};
    add_values<1>(s + row * piece_positions, after, piece, row / R, part.sums + row * dim);
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
