// One query of some KV heads against one piece of the context, straight from the blocks.
//
//   a strip of positions:   head 0   head 1   head 2 ...      the next strip: head 0 ...
//                              ^------- fetched while head 0 is multiplied
//
// In memory a block's heads are neighbours, so heads go inside and strips outside: the blocks of a
// strip are read in long runs side by side. All query heads of a KV head share each load.
#pragma once

#include "cpu/attention_tiles.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t strip_positions = 64;  // of V
constexpr int64_t strip_vectors = strip_positions / lanes;

// Where a piece lies for the first of `heads` KV heads: of each `lanes` positions, the first's
// element 0 of K (the next element `k_stride` further) and row of V (the next position `head_dim`
// further). The next head's are `head_size` further.
template <class T>
struct Piece {
  const T* k[piece_positions / lanes];
  const T* v[piece_positions / lanes];
  int64_t k_stride, head_dim;
  int64_t heads, head_size;
};

// Vectors side by side that leave room for R rows of accumulators in the registers.
constexpr int columns_for(int rows) {
  const int room = (lanes == 16 ? 16 : 8) / rows;
  return room >= 4 ? 4 : room >= 2 ? 2 : 1;
}

// C vectors of positions of a head's K, and what comes after them in memory's order.
template <class T, int C>
struct Strip {
  const T *k[C], *next[C];

  // Vectors `first` on of the piece, `end` of which are seen.
  Strip(const Piece<T>& piece, int64_t head, int64_t first, int64_t end) {
    const bool last = head + 1 == piece.heads, none = first + 2 * C > end;
    for (int c = 0; c < C; ++c) {
      k[c] = piece.k[first + c] + head * piece.head_size;
      // After the last strip of K comes V, whose first strip begins where K's did.
      next[c] = !last ? k[c] + piece.head_size : none ? piece.v[first + c] : piece.k[first + C + c];
    }
  }
};

// Scores of vectors [first, end) of the piece, R rows for each head.
template <int R, int C, class T>
void score(const float* q, const Piece<T>& piece, int64_t first, int64_t end, float* s) {
  for (; end - first >= C; first += C)
    for (int64_t head = 0; head < piece.heads; ++head) {
      const Strip<T, C> strip(piece, head, first, end);
      score_tile<R, C, true>(q + head * R * piece.head_dim, piece.head_dim, strip.k, piece.k_stride,
                             strip.next, s + head * R * piece_positions + first * lanes);
    }
  if constexpr (C > 1)
    if (first < end) score<R, C / 2>(q, piece, first, end, s);
}

// Ask for a row's share of its head's V, in the strip that `position` lies in: memory would be idle
// while weights are computed. Into the second cache, for all heads' strips may not fit in the
// first.
template <int R, class T>
void fetch_values(const Piece<T>& piece, int64_t position, int64_t row) {
  constexpr int64_t line = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t vector = row % R; vector < strip_vectors; vector += R) {
    const T* v = piece.v[position / strip_positions * strip_vectors + vector];
    v += row / R * piece.head_size;
    for (int64_t i = 0; i < lanes * piece.head_dim; i += line) __builtin_prefetch(v + i, 0, 2);
  }
}

// sums[r, column..] += sum_j e[r, j] v[j, column..] over a strip, positions rising. What lies
// `ahead` elements after each vector is fetched.
template <int R, int C, class T>
void value_tile(const float* e, Span span, const Piece<T>& piece, int64_t head, int64_t column,
                Part part) {
  constexpr int per_line = larger<int>(1, 64 / (lanes * static_cast<int>(sizeof(T))));
  const int64_t dim = piece.head_dim, offset = head * piece.head_size;
  const bool last = head + 1 == piece.heads;
  F32 x[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) x[r][c] = load(part.sums + r * part.stride + column + c * lanes);
  for (int64_t j = span.begin; j < span.end;) {
    const int64_t vector = j / lanes, begin = j % lanes;
    const int64_t stop = smaller(span.end, (vector + 1) * lanes);
    const T* v = piece.v[vector] + offset + begin * dim + column;
    const bool more = vector + strip_vectors < piece_positions / lanes;
    const T* ahead = !last  ? v + piece.head_size
                     : more ? piece.v[vector + strip_vectors] + begin * dim + column
                            : v;
    for (; j < stop; ++j, v += dim, ahead += dim) {
#pragma GCC unroll 8
      for (int c = 0; c < C; c += per_line) prefetch(ahead + c * lanes);
      F32 values[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) values[c] = load(v + c * lanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const float weight = e[r * piece_positions + j];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) x[r][c] = fma(weight, values[c], x[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(part.sums + r * part.stride + column + c * lanes, x[r][c]);
}

// The last head_dim % lanes columns of one row.
template <class T>
void value_tail(const float* e, Span span, const Piece<T>& piece, int64_t head, int64_t column,
                float* sums) {
  const int n = static_cast<int>(piece.head_dim - column);
  F32 x = load_partial(sums + column, n);
  for (int64_t j = span.begin; j < span.end; ++j) {
    const T* v = piece.v[j / lanes] + head * piece.head_size + j % lanes * piece.head_dim + column;
    x = fma(e[j], load_partial(v, n), x);
  }
  store_partial(sums + column, x, n);
}

template <int R, int C, class T>
void add_columns(const float* e, Span span, const Piece<T>& piece, int64_t head, int64_t column,
                 Part part) {
  for (; piece.head_dim - column >= C * lanes; column += C * lanes)
    value_tile<R, C>(e, span, piece, head, column, part);
  if constexpr (C > 1) {
    if (column < piece.head_dim) add_columns<R, C / 2>(e, span, piece, head, column, part);
  } else if (column < piece.head_dim) {
    for (int r = 0; r < R; ++r)
      value_tail(e + r * piece_positions, span, piece, head, column, part.sums + r * part.stride);
  }
}

// R rows for each head. `s` is (heads * R, 256) of scratch; `scales` has 256 positions for each
// head, or nothing.
template <int R, class T>
void attend_heads(const float* q, Span span, const Piece<T>& piece, Scales scales, float* s,
                  Part part) {
  const int64_t dim = piece.head_dim;
  score<R, columns_for(R)>(q, piece, span.begin / lanes, ceil_div(span.end, lanes), s);
  for (int64_t row = 0; row < piece.heads * R; ++row) {
    const int64_t at = row / R * piece_positions;
    const Scales own{scales.k ? scales.k + at : nullptr, scales.v ? scales.v + at : nullptr};
    part.total[row] = exponentials(s + row * piece_positions, span, own, part.highest + row);
    memset(part.sums + row * part.stride, 0, static_cast<size_t>(dim) * sizeof(float));
  }
  for (int64_t begin = span.begin; begin < span.end;) {
    const int64_t end = (begin / strip_positions + 1) * strip_positions;
    const Span strip = span.within({begin, end});
    for (int64_t head = 0; head < piece.heads; ++head) {
      const int64_t row = head * R;
      add_columns<R, columns_for(R)>(
          s + row * piece_positions, strip, piece, head, 0,
          {part.sums + row * part.stride, nullptr, nullptr, part.stride});
    }
    begin = end;
  }
}

template <int R>
struct Rows {
  static constexpr int value = R;
};

// f(Rows<number of rows>), of at most max_rows.
template <class Function>
void with_rows(int64_t rows, const Function& f) {
  switch (rows) {
    case 1:
      return f(Rows<1>{});
    case 2:
      return f(Rows<2>{});
    case 3:
      return f(Rows<3>{});
    case 4:
      return f(Rows<4>{});
    case 5:
      return f(Rows<5>{});
    case 6:
      return f(Rows<6>{});
    case 7:
      return f(Rows<7>{});
    default:
      return f(Rows<8>{});
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
