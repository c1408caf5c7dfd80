// Attention over a bfloat16 cache by dot products of pairs.
//
//   score   two elements of the head, 2 i and 2 i + 1, at a time: the query, times the scale, is
//           rounded to bfloat16 like the keys it is multiplied with
//   values  two positions, 2 j and 2 j + 1 of the context, at a time: the softmax's weights, at
//           most 1, are rounded to bfloat16 like the values they are multiplied with
//
// Sums are floats. Pairs are those of absolute positions and are added in their order, so a row
// gets the same bits in a prefill (here) and in a decode (attention_decode_pairs.h). Where a row
// sees one position of a pair only, the other one's value is taken as 0: it may be a later token's,
// or memory that nothing was written to, and 0 times that may be NaN.
//
// The weights' total is that of the rounded ones. So a row's output is a mean of the values it sees
// and rounding moves it by a part of their spread; with the total of the unrounded weights it
// would err in proportion to the values themselves, even where all are equal.
#pragma once

#include "cpu/attention_panel.h"
#include "simd/pairs.h"

namespace quire::QUIRE_ISA {
namespace {

#if defined(QUIRE_PAIRS)

constexpr int64_t piece_pairs = piece_positions / 2;
constexpr uint32_t low_half = 0xffff, high_half = 0xffff0000, both_halves = 0xffffffff;

int64_t head_pairs(int64_t head_dim) { return ceil_div(head_dim, 2); }

// As `Panel`, of pairs: K (256 / width, ceil(H / 2), width) and V (ceil(H / width), 128, width).
struct PairPanel {
  uint32_t *k, *v;
  int64_t head_dim;
  explicit PairPanel(Panel floats)
      : k(reinterpret_cast<uint32_t*>(floats.k)),
        v(reinterpret_cast<uint32_t*>(floats.v)),
        head_dim(floats.head_dim) {}
};

// Queries (rows, H) become pairs (rows, ceil(H / 2)) in the same memory.
void round_queries(float* q, int64_t rows, int64_t head_dim) {
  auto* to = reinterpret_cast<uint32_t*>(q);
  for (int64_t row = 0; row < rows; ++row, q += head_dim) {
    // What is written lies before what is still to be read.
    for (int64_t i = 0; i < head_dim; i += 2 * lanes) {
      const F32 x = load_tail(q + i, head_dim - i);
      const int64_t more = head_dim - i - lanes;
      uint32_t pairs[lanes];
      store_pairs(pairs, round_pairs(x, more > 0 ? load_tail(q + i + lanes, more) : zero()));
      const int64_t count = smaller<int64_t>(lanes, head_pairs(head_dim - i));
      memcpy(to, pairs, static_cast<size_t>(count) * sizeof(uint32_t));
      to += count;
    }
  }
}

uint32_t pair_bits(BF16 low, BF16 high) {
  return low.bits | static_cast<uint32_t>(high.bits) << 16;
}

// Unpack position j: K's element i is k[i * k_stride].
void unpack_position(const BF16* k, int64_t k_stride, int64_t j, PairPanel panel) {
  const int64_t dim = panel.head_dim;
  uint32_t* to = panel.k + j / panel_width * head_pairs(dim) * panel_width + j % panel_width;
  for (int64_t i = 0; i < dim; i += 2, to += panel_width)
    *to = pair_bits(k[i * k_stride], i + 1 < dim ? k[(i + 1) * k_stride] : BF16{0});
}

// The same of the `lanes` positions from j, a multiple of lanes, on.
void unpack_vector(const BF16* k, int64_t k_stride, int64_t j, PairPanel panel) {
  const int64_t dim = panel.head_dim;
  uint32_t* to = panel.k + j / panel_width * head_pairs(dim) * panel_width + j % panel_width;
  for (int64_t i = 0; i + 2 <= dim; i += 2, k += 2 * k_stride, to += panel_width)
    store_pairs(to, interleave(k, k + k_stride));
  if (dim % 2) store_pairs(to, only_low(k));
}

// Unpack the values of position j as halves of pairs; columns past the head become 0.
void unpack_values(const BF16* v, int64_t j, PairPanel panel) {
  const int64_t dim = panel.head_dim;
  for (int64_t d = 0; d < Panel::columns(dim); d += lanes) {
    uint32_t* to =
        panel.v + (d / panel_width * piece_pairs + j / 2) * panel_width + d % panel_width;
    const int64_t n = larger<int64_t>(0, dim - d);
    const Pairs x = n < lanes ? only_low_partial(v + d, static_cast<int>(n)) : only_low(v + d);
    store_pairs(to, j % 2 ? with_high(load_pairs(to), x) : x);
  }
}

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

// e^x of x <= 0 with an error below 2^-14, a small part of what rounding to bfloat16 adds: 2^f by
// the Taylor series, |f| <= 1/2. NaN for NaN.
void short_exp(F32 (&x)[2]) {
  F32 powers[2], p[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    // The bound comes first: max returns the second operand, x, when it is NaN.
    x[i] = max(set1(-150.0f), x[i] * set1(1.44269504f));
    powers[i] = round(x[i]);
    x[i] = x[i] - powers[i];
    p[i] = fma(set1(9.61812911e-3f), x[i], set1(5.55041087e-2f));
    p[i] = fma(p[i], x[i], set1(2.40226507e-1f));
    p[i] = fma(p[i], x[i], set1(6.93147181e-1f));
    p[i] = fma(p[i], x[i], set1(1.0f));
    x[i] = scale_by_power(p[i], powers[i]);
  }
}

// Turn the 256 scores of a row into exp(score - highest) rounded to bfloat16, as pairs in the same
// memory; returns their sum. Positions outside the span become 0 as far as whole pairs of vectors.
float pair_weights(float* s, Span span, float* highest) {
  constexpr int64_t step = 2 * lanes;
  const int64_t first = span.begin / step * step, end = ceil_div(span.end, step) * step;
  F32 best = set1(-INFINITY);
  for (int64_t i = first; i < span.begin; i += lanes) store_tail(s + i, best, span.begin - i);
  for (int64_t i = span.end; i < end; i += lanes) store_tail(s + i, best, end - i);
  for (int64_t i = first; i < end; i += lanes) best = max(load(s + i), best);
  *highest = max(best);
  const F32 shift = set1(*highest == -INFINITY ? 0.0f : *highest);
  auto* e = reinterpret_cast<uint32_t*>(s);
  F32 total = zero();
  for (int64_t i = first; i < end; i += step) {
    F32 x[2] = {load(s + i) - shift, load(s + i + lanes) - shift};
    short_exp(x);
    const Pairs rounded = round_pairs(x[0], x[1]);
    store_pairs(e + i / 2, rounded);
    total = total + (widen_even(rounded) + widen_odd(rounded));
  }
  return sum(total);
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

// f(first pair, end pair, halves) over the pairs of a span: the halves outside it are left out.
template <class Function>
void each_pair_run(Span span, const Function& f) {
  if (span.begin >= span.end) return;
  int64_t first = span.begin / 2;
  if (span.begin % 2) f(first, first + 1, high_half), ++first;
  if (first < span.end / 2) f(first, span.end / 2, both_halves);
  if (span.end % 2) f(span.end / 2, span.end / 2 + 1, low_half);
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
        pair_weights(rows.s + row * piece_positions, span, rows.part.highest + row);
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
