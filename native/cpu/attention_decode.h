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

// What of a span lies from `begin` on in the same strip of V.
Span strip_at(int64_t begin, Span span) {
  return {begin, smaller((begin / strip_positions + 1) * strip_positions, span.end)};
}

// Where a piece lies for the first of `heads` KV heads: of each `lanes` positions, the first's
// element 0 of K (the next element `k_stride` further) and row of V (the next position `v_stride`
// further). The next head's are `head_size` further. T may be a pair of elements.
template <class T>
struct Piece {
  const T* k[piece_positions / lanes];
  const T* v[piece_positions / lanes];
  int64_t k_stride, v_stride, head_dim;
  int64_t heads, head_size;
  Scales scales;
};

void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

// C vectors of positions of a head's K, from vector `first` of the `end` that are seen, and what
// comes after them in memory's order.
template <class T, int C>
struct Strip {
  const T *k[C], *next[C];
  const float* scales;  // of its first position, `scale_stride` apart; or null

  Strip(const Piece<T>& piece, int64_t head, int64_t first, int64_t end)
      : scales(piece.scales.k ? piece.scales.of(head).k + first * lanes : nullptr) {
    const bool last = head + 1 == piece.heads, none = first + C >= end;
    for (int c = 0; c < C; ++c) {
      k[c] = piece.k[first + c] + head * piece.head_size;
      // After the last strip of K comes V, whose first strip begins where K's did.
      next[c] = !last ? k[c] + piece.head_size : none ? piece.v[first + c] : piece.k[first + C + c];
    }
  }
};

// A head's values from a position on, as far as they lie side by side, and what comes after their
// strip: that of the next head, after the last head the next one.
template <class T>
struct Values {
  const T *v, *ahead;

  Values(const Piece<T>& piece, int64_t head, int64_t position, int64_t column) {
    const int64_t vector = position / lanes, at = position % lanes * piece.v_stride + column;
    const int64_t next = vector + strip_vectors;
    v = piece.v[vector] + head * piece.head_size + at;
    ahead = head + 1 < piece.heads           ? v + piece.head_size
            : next < piece_positions / lanes ? piece.v[next] + at
                                             : v;
  }

  // Fetch what comes after C vectors of columns, `offset` elements further.
  template <int C>
  [[gnu::always_inline]] void fetch(int64_t offset = 0) const {
    constexpr int per_line = larger<int>(1, 64 / (lanes * static_cast<int>(sizeof(T))));
#pragma GCC unroll 8
    for (int c = 0; c < C; c += per_line) prefetch(ahead + offset + c * lanes);
  }

  void advance(int64_t elements) { v += elements, ahead += elements; }
};

// Tiles of a decode over elements of type T: what one multiplies, all in floats.
//
//   Word              of queries and weights, `words(H)` for a query
//   Mode              what the processor is told while tiles are multiplied
//   columns(rows)     vectors side by side that leave room for the sums in the registers
//   score(...)        sums[r, c] += q[r, :] . k[:, c]; strip.next is fetched to the same extent
//   weights(...)      turns the scores of a row into weights, as words; returns their total
//   add_values(...)   sums[r, c] += sum_j e[r, j] v[j, column + c], positions of a strip rising;
//                     with Tail, of fewer columns than a vector has
template <class T>
struct FloatTiles {
  using Word = float;
  struct Mode {};

  static constexpr int columns(int rows) {
    const int room = (lanes == 16 ? 16 : 8) / rows;
    return room >= 4 ? 4 : room >= 2 ? 2 : 1;
  }
  static int64_t words(int64_t head_dim) { return head_dim; }

  template <int R, int C>
  [[gnu::always_inline]] static void score(const float* q, int64_t head_dim,
                                           const Strip<T, C>& strip, int64_t stride,
                                           F32 (&sums)[R][C]) {
    const int64_t bytes = stride * static_cast<int64_t>(sizeof(T));
    const int64_t within_line = larger<int64_t>(1, 64 / bytes) - 1;  // a power of 2, - 1
    for (int64_t i = 0; i < head_dim; ++i) {
      if ((i & within_line) == 0)
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) prefetch(strip.next[c] + i * stride);
      F32 keys[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) keys[c] = load(strip.k[c] + i * stride);
      add_products(sums, q + i, head_dim, keys);
    }
  }

  static float weights(float* s, Span span, Scales scales, float* highest) {
    return exponentials(s, span, scales, highest);
  }

  template <bool Tail, int R, int C>
  [[gnu::always_inline]] static void add_values(const float* e, Span span, const Piece<T>& piece,
                                                int64_t head, int64_t column, F32 (&sums)[R][C]) {
    const int64_t dim = piece.head_dim;
    for (int64_t j = span.begin; j < span.end;) {
      const int64_t stop = smaller(span.end, (j / lanes + 1) * lanes);
      for (Values<T> at(piece, head, j, column); j < stop; ++j, at.advance(dim)) {
        at.template fetch<C>();
        F32 values[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c)
          values[c] =
              Tail ? load_partial(at.v, static_cast<int>(dim - column)) : load(at.v + c * lanes);
        add_products(sums, e + j, piece_positions, values);
      }
    }
  }
};

// Scores of vectors [first, end) of the piece, R rows for each head; of whole strips, C vectors.
// Not inlined, like `add_tile`: its loop needs all registers for itself.
template <class Tiles, int R, int C, class T>
[[gnu::noinline]] void score_heads(const typename Tiles::Word* q, const Piece<T>& piece,
                                   int64_t first, int64_t end, float* s) {
  const int64_t words = Tiles::words(piece.head_dim);
  for (first = first / C * C; first < end; first += C)
    for (int64_t head = 0; head < piece.heads; ++head) {
      F32 sums[R][C] = {};
      Tiles::score(q + head * R * words, piece.head_dim, Strip<T, C>(piece, head, first, end),
                   piece.k_stride, sums);
      store_sums(sums, s + head * R * piece_positions + first * lanes, piece_positions);
    }
}

// Ask for a row's share of its head's V, in a strip: memory would be idle while weights are
// computed. Into the second cache, for all heads' strips may not fit in the first.
template <int R, class T>
void fetch_values(const Piece<T>& piece, Span strip, int64_t row) {
  constexpr int64_t line = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t j = strip.begin / lanes + row % R; j * lanes < strip.end; j += R) {
    const T* v = piece.v[j] + row / R * piece.head_size;
    for (int64_t i = 0; i < lanes * piece.v_stride; i += line) __builtin_prefetch(v + i, 0, 2);
  }
}

// sums[r, column..] += sum_j e[r, j] v[j, column..] over a strip; `stride` is from sums to sums.
template <class Tiles, int R, int C, bool Tail, class T>
[[gnu::noinline]] void add_tile(const typename Tiles::Word* e, Span strip, const Piece<T>& piece,
                                int64_t head, int64_t column, float* sums, int64_t stride) {
  F32 x[R][C];
  load_sums(x, sums + column, stride);
  Tiles::template add_values<Tail>(e, strip, piece, head, column, x);
  store_sums(x, sums + column, stride);
}

template <class Tiles, int R, int C, class T>
void add_columns(const typename Tiles::Word* e, Span strip, const Piece<T>& piece, int64_t head,
                 int64_t column, float* sums, int64_t stride) {
  for (; piece.head_dim - column >= C * lanes; column += C * lanes)
    add_tile<Tiles, R, C, false>(e, strip, piece, head, column, sums, stride);
  if (column >= piece.head_dim) return;
  if constexpr (C > 1)
    add_columns<Tiles, R, C / 2>(e, strip, piece, head, column, sums, stride);
  else
    for (int r = 0; r < R; ++r)
      add_tile<Tiles, 1, 1, true>(e + r * piece_positions, strip, piece, head, column,
                                  sums + r * stride, stride);
}

// R rows for each head. `s` is (heads * R, 256) of scratch.
template <class Tiles, int R, class T>
void attend_heads(const typename Tiles::Word* q, Span span, const Piece<T>& piece, float* s,
                  Part part) {
  constexpr int columns = Tiles::columns(R);
  {
    [[maybe_unused]] const typename Tiles::Mode mode;
    score_heads<Tiles, R, columns>(q, piece, span.begin / lanes, ceil_div(span.end, lanes), s);
  }
  for (int64_t row = 0; row < piece.heads * R; ++row) {
    fetch_values<R>(piece, strip_at(span.begin, span), row);
    part.total[row] = Tiles::weights(s + row * piece_positions, span, piece.scales.of(row / R),
                                     part.highest + row);
    part.clear(row);
  }
  [[maybe_unused]] const typename Tiles::Mode mode;
  const auto* e = reinterpret_cast<const typename Tiles::Word*>(s);
  for (int64_t begin = span.begin; begin < span.end;) {
    const Span strip = strip_at(begin, span);
    for (int64_t head = 0; head < piece.heads; ++head)
      add_columns<Tiles, R, columns>(e + head * R * piece_positions, strip, piece, head, 0,
                                     part.sums + head * R * part.stride, part.stride);
    begin = strip.end;
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

// As many rows for each head as there are query heads for a KV head, at most max_rows.
template <class Tiles, class T>
void attend_query(int64_t rows_per_head, const float* q, Span span, const Piece<T>& piece, float* s,
                  Part part) {
  const auto* words = reinterpret_cast<const typename Tiles::Word*>(q);
  with_rows(rows_per_head, [&](auto rows) {
    attend_heads<Tiles, decltype(rows)::value>(words, span, piece, s, part);
  });
}

}  // namespace
}  // namespace quire::QUIRE_ISA
