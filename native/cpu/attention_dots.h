// Attention over a bfloat16 cache by dot products of pairs (attention_pairs.h), many rows.
//
// Of each pair the instruction adds both products to the sum.
#pragma once

#include "cpu/attention_pairs.h"

namespace quire::QUIRE_ISA {
namespace {

#if defined(QUIRE_DOTS)

// Scores of R rows for one tile of positions.
template <int R, int C>
void score_pairs(const uint32_t* q, int64_t pairs, const uint32_t* k, float* s) {
  F32 sums[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sums[r][c] = zero();
  for (int64_t i = 0; i < pairs; ++i) {
    Pairs keys[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) keys[c] = load_pairs(k + i * panel_width + c * lanes);
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

// Turn the 256 scores of a row into weights, as pairs in the same memory; returns their sum.
float dot_weights(float* s, Span span, float* highest) {
  auto* e = reinterpret_cast<uint32_t*>(s);
  return pair_weights(s, span, span, highest, [=](int64_t i, F32 x, F32 y) {
    const Pairs pairs = round_pairs(x, y);
    store_pairs(e + i / 2, pairs);
    return widen_even(pairs) + widen_odd(pairs);
  });
}

// sums[r] += sum_j e[r, j] v[j] over pairs [first, end) for one tile of columns.
template <int R, int C>
void value_pairs(const uint32_t* e, int64_t first, int64_t end, uint32_t mask, const uint32_t* v,
                 float* sums, int64_t stride) {
  F32 x[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) x[r][c] = load(sums + r * stride + c * lanes);
  for (int64_t j = first; j < end; ++j) {
    Pairs values[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) values[c] = keep(load_pairs(v + j * panel_width + c * lanes), mask);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Pairs weight = set1_pair(e[r * piece_positions + j]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) x[r][c] = dot(weight, values[c], x[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(sums + r * stride + c * lanes, x[r][c]);
}

// Scores of R rows for one tile of positions, unless no row sees any of it.
template <int R>
void score_pair_rows(const PanelRows& rows, int64_t row, int64_t column, const uint32_t* k,
                     int64_t pairs) {
  bool seen = false;
  for (int r = 0; r < R; ++r) {
    const Span span = rows.spans[row + r];
    seen |= span.begin < span.end && span.begin < column + panel_width && span.end > column;
  }
  if (!seen) return;
  score_pairs<R, panel_columns>(reinterpret_cast<const uint32_t*>(rows.q) + row * pairs, pairs, k,
                                rows.s + row * piece_positions + column);
}

// The values of `span` for R rows: where all rows see both of a pair they share it, before and
// after that each row goes alone.
template <int R>
void value_pair_rows(const PanelRows& rows, int64_t row, Span span, int64_t column,
                     const uint32_t* v) {
  const int64_t stride = rows.part.stride;
  const auto* e = reinterpret_cast<const uint32_t*>(rows.s) + row * piece_positions;
  float* sums = rows.part.sums + row * stride + column;
  Span all = span;
  for (int r = 0; r < R; ++r) all = all.within(rows.spans[row + r]);
  all = {ceil_div(all.begin, 2) * 2, all.end / 2 * 2};
  if (all.begin >= all.end) all = {span.end, span.end};
  const auto alone = [&](Span part) {
    for (int r = 0; r < R; ++r)
      each_pair_run(rows.spans[row + r].within(part), [&](int64_t j, int64_t end, uint32_t half) {
        value_pairs<1, panel_columns>(e + r * piece_positions, j, end, half, v, sums + r * stride,
                                      stride);
      });
  };
  alone({span.begin, all.begin});
  if (all.begin < all.end)
    value_pairs<R, panel_columns>(e, all.begin / 2, all.end / 2, both_halves, v, sums, stride);
  alone({all.end, span.end});
}

// All rows against the positions `whole` of the piece.
void attend_panel(const PanelRows& rows, int64_t count, Span whole, PairPanel panel, Scales) {
  const int64_t dim = panel.head_dim, pairs = head_pairs(dim);
  const int64_t first = whole.begin / panel_width * panel_width;
  for (int64_t column = first; column < whole.end; column += panel_width) {
    const uint32_t* k = panel.k + column * pairs;
    each_tile<panel_rows>(0, count, [&](auto tile, int64_t row) {
      score_pair_rows<decltype(tile)::rows>(rows, row, column, k, pairs);
    });
  }
  for (int64_t row = 0; row < count; ++row) {
    const Span span = rows.spans[row];
    rows.part.total[row] = 0.0f;
    if (span.begin >= span.end) continue;
    rows.part.total[row] =
        dot_weights(rows.s + row * piece_positions, span, rows.part.highest + row);
    memset(rows.part.sums + row * rows.part.stride, 0,
           static_cast<size_t>(rows.part.stride) * sizeof(float));
  }
  for (int64_t begin = 0; begin < piece_positions; begin += value_positions) {
    const Span span = whole.within({begin, begin + value_positions});
    for (int64_t column = 0; span.begin < span.end && column < dim; column += panel_width) {
      const uint32_t* v = panel.v + column * piece_pairs;
      each_tile<panel_rows>(0, count, [&](auto tile, int64_t row) {
        value_pair_rows<decltype(tile)::rows>(rows, row, span, column, v);
      });
    }
  }
}

#endif

}  // namespace
}  // namespace quire::QUIRE_ISA
