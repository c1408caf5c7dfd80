// Pairs of bfloat16 in attention over a bfloat16 cache: queries, K, V and the softmax's weights.
//
//   score   two elements of the head, 2 i and 2 i + 1, at a time: the query, times the scale, is
//           rounded to bfloat16 like the keys it is multiplied with
//   values  two positions, 2 j and 2 j + 1 of the context, at a time: the softmax's weights, at
//           most 1, are rounded to bfloat16 like the values they are multiplied with
//
// Sums are floats. Pairs are those of absolute positions and are added in one order, that of the
// instruction set (attention_dots.h, attention_in_tiles.h), so a row gets the same bits in a
// prefill and in a decode. Of positions that a row does not see nothing may come in: they may be
// later tokens', or memory that nothing was written to, and a weight of 0 times that may be NaN.
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

// Pairs that a tile multiplies at a time; those past the head are 0.
#if defined(QUIRE_DOTS)
constexpr int64_t step_pairs = 1;
#else
constexpr int64_t step_pairs = 16;
#endif
// P in what follows.
int64_t head_pairs(int64_t head_dim) { return ceil_div(head_dim, 2 * step_pairs) * step_pairs; }

// As `Panel`, of pairs: K (256 / width, P, width) and V (ceil(H / width), 128, width).
struct PairPanel {
  uint32_t *k, *v;
  int64_t head_dim, value_dim;
  explicit PairPanel(Panel floats)
      : k(reinterpret_cast<uint32_t*>(floats.k)),
        v(reinterpret_cast<uint32_t*>(floats.v)),
        head_dim(floats.head_dim),
        value_dim(floats.value_dim) {}
  int64_t words() const { return head_pairs(head_dim); }  // of K that a position has
};

// Queries (rows, H) become pairs (rows, P) in the same memory.
void round_queries(float* q, int64_t rows, int64_t head_dim) {
  const int64_t row_pairs = head_pairs(head_dim);
  for (int64_t i = 0; i < rows; ++i) {
    // In the order that writes nothing over what is still to be read.
    const int64_t row = row_pairs > head_dim ? rows - 1 - i : i;
    const float* from = q + row * head_dim;
    auto* to = reinterpret_cast<uint32_t*>(q) + row * row_pairs;
    for (int64_t d = 0; d < head_dim; d += 2 * lanes) {
      const F32 x = load_tail(from + d, head_dim - d);
      const int64_t more = head_dim - d - lanes;
      uint32_t pairs[lanes];
      store_pairs(pairs, round_pairs(x, more > 0 ? load_tail(from + d + lanes, more) : zero()));
      const int64_t count = smaller<int64_t>(lanes, row_pairs - d / 2);
      memcpy(to + d / 2, pairs, static_cast<size_t>(count) * sizeof(uint32_t));
    }
  }
}

uint32_t pair_bits(BF16 low, BF16 high) {
  return low.bits | static_cast<uint32_t>(high.bits) << 16;
}

// Unpack position j: K's element i is k[i * k_stride].
void unpack_position(const BF16* k, int64_t k_stride, int64_t j, PairPanel panel) {
  const int64_t dim = panel.head_dim, pairs = head_pairs(dim);
  uint32_t* to = panel.k + j / panel_width * pairs * panel_width + j % panel_width;
  const auto element = [=](int64_t i) { return i < dim ? k[i * k_stride] : BF16{0}; };
  for (int64_t i = 0; i < pairs; ++i)
    to[i * panel_width] = pair_bits(element(2 * i), element(2 * i + 1));
}

// The same of the `lanes` positions from j, a multiple of lanes, on.
void unpack_vector(const BF16* k, int64_t k_stride, int64_t j, PairPanel panel) {
  const int64_t dim = panel.head_dim, pairs = head_pairs(dim);
  uint32_t* to = panel.k + j / panel_width * pairs * panel_width + j % panel_width;
  for (int64_t i = 0; i < pairs; ++i, k += 2 * k_stride, to += panel_width)
    store_pairs(to, 2 * i + 1 < dim    ? interleave(k, k + k_stride)
                    : 2 * i + 1 == dim ? only_low(k)
                                       : set1_pair(0));
}

// The same of positions whose elements lie side by side, rows `stride` apart.
void turn_rows(const BF16* rows, int64_t stride, int64_t j, PairPanel panel) {
  const int64_t dim = panel.head_dim, pairs = head_pairs(dim);
  uint32_t* to = panel.k + j / panel_width * pairs * panel_width + j % panel_width;
  const int64_t whole = dim / 8 * 4;  // pairs that can be read in place
  turn_round(rows, stride * sizeof(BF16), whole, to);
  uint32_t square[lanes * lanes];
  for (int64_t first = whole; first < pairs; first += lanes) {
    const int64_t left = larger<int64_t>(0, dim - 2 * first);
    const size_t bytes = sizeof(BF16) * smaller<int64_t>(2 * lanes, left);
    memset(square, 0, sizeof(square));
    for (int64_t i = 0; i < lanes; ++i)
      memcpy(square + i * lanes, rows + i * stride + 2 * first, bytes);
    turn_round(square, lanes * sizeof(uint32_t), smaller<int64_t>(lanes, pairs - first),
               to + first * panel_width);
  }
}

// Unpack the values of position j as halves of pairs; columns past the head become 0.
void unpack_values(const BF16* v, int64_t j, PairPanel panel) {
  const int64_t dim = panel.value_dim;
  for (int64_t d = 0; d < Panel::columns(dim); d += lanes) {
    uint32_t* to =
        panel.v + (d / panel_width * piece_pairs + j / 2) * panel_width + d % panel_width;
    const int64_t n = larger<int64_t>(0, dim - d);
    const Pairs x = n < lanes ? only_low_partial(v + d, static_cast<int>(n)) : only_low(v + d);
    store_pairs(to, j % 2 ? with_high(load_pairs(to), x) : x);
  }
}

// The same of `count` positions from j on, rows `stride` apart.
void unpack_value_rows(const BF16* rows, int64_t stride, int64_t j, int64_t count,
                       PairPanel panel) {
  const int64_t dim = panel.value_dim, first = j % 2, last = count - (count - first) % 2;
  if (first && count) unpack_values(rows, j, panel);
  for (int64_t d = 0; d < Panel::columns(dim); d += lanes) {
    uint32_t* to = panel.v + d / panel_width * piece_pairs * panel_width + d % panel_width;
    const int64_t n = larger<int64_t>(0, dim - d);
    for (int64_t i = first; i < last; i += 2) {
      const BF16* low = rows + i * stride + d;
      store_pairs(to + (j + i) / 2 * panel_width,
                  n < lanes ? interleave_partial(low, low + stride, static_cast<int>(n))
                            : interleave(low, low + stride));
    }
  }
  if (last < count) unpack_values(rows + last * stride, j + last, panel);
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

// Turn a row's scores into exp(score - highest) and hand them, two vectors of neighbours at a time,
// to put(position, x, y), which rounds and keeps them and returns their sum as one vector; returns
// the sum of all. Of `region`, positions outside the span count as scores of -inf.
template <class Put>
float pair_weights(float* s, Span span, Span region, float cap, float* highest, const Put& put) {
  constexpr int64_t step = 2 * lanes;
  const int64_t first = region.begin / step * step, end = ceil_div(region.end, step) * step;
  cap_scores(s, span, cap);
  F32 best = set1(-INFINITY);
  for (int64_t i = first; i < span.begin; i += lanes) store_tail(s + i, best, span.begin - i);
  for (int64_t i = span.end; i < end; i += lanes) store_tail(s + i, best, end - i);
  for (int64_t i = first; i < end; i += lanes) best = max(load(s + i), best);
  *highest = max(best);
  const F32 shift = set1(*highest == -INFINITY ? 0.0f : *highest);
  F32 total = zero();
  for (int64_t i = first; i < end; i += step) {
    F32 x[2] = {load(s + i) - shift, load(s + i + lanes) - shift};
    short_exp(x);
    total = total + put(i, x[0], x[1]);
  }
  return sum(total);
}

// f(first pair, end pair, halves) over the pairs of a span: the halves outside it are left out.
template <class Function>
void each_pair_run(Span span, const Function& f) {
  if (span.empty()) return;
  int64_t first = span.begin / 2;
  if (span.begin % 2) f(first, first + 1, high_half), ++first;
  if (first < span.end / 2) f(first, span.end / 2, both_halves);
  if (span.end % 2) f(span.end / 2, span.end / 2 + 1, low_half);
}

#endif

}  // namespace
}  // namespace quire::QUIRE_ISA
