// What decode and prefill share: tiles of scores and of weighted sums, softmax, merging of pieces.
//
// A piece is 256 absolute positions. What a row gets from it depends on the row, on the piece's K
// and V and on nothing else: a score is summed over the head's elements in order, a sum over the
// piece's positions in order, whatever tile they lie in.
#pragma once

#include <float.h>
#include <math.h>

#include "simd/math.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t piece_positions = 256;
constexpr int lanes = F32::lanes;
constexpr int max_rows = 8;

// Positions of a piece that a row sees; none when empty.
struct Span {
  int64_t begin, end;
  bool empty() const { return begin >= end; }
  Span within(Span other) const { return {larger(begin, other.begin), smaller(end, other.end)}; }
};

// What rows got from a piece: sum of exp(score - highest) v, highest score, sum of exp.
struct Part {
  float* sums;  // (rows, stride), H of them used
  float* highest;
  float* total;  // 0 when the row sees nothing of the piece
  int64_t stride;

  Part from(int64_t row) const { return {sums + row * stride, highest + row, total + row, stride}; }
  void clear(int64_t row) const {
    memset(sums + row * stride, 0, static_cast<size_t>(stride) * sizeof(float));
  }
};

// From one row of factors to the next. Not a power of two: rows would share a few cache sets.
constexpr int64_t scale_stride = piece_positions + 16;

// Each position's factors of K and V, or null: (heads, per_head, scale_stride). And what scores are
// bent towards, or 0.
struct Scales {
  const float *k, *v;
  int64_t per_head;
  float cap;
  Scales of(int64_t head) const {
    const int64_t at = head * per_head * scale_stride;
    return {k ? k + at : nullptr, v ? v + at : nullptr, per_head, cap};
  }
  Scales cap_alone() const { return {nullptr, nullptr, 0, cap}; }
};

// Sums of R rows, `stride` floats apart, and C vectors of columns; in registers all along, for
// which everything that has them is inlined.
template <int R, int C>
[[gnu::always_inline]] inline void load_sums(F32 (&x)[R][C], const float* from, int64_t stride) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) x[r][c] = load(from + r * stride + c * lanes);
}
template <int R, int C>
[[gnu::always_inline]] inline void store_sums(const F32 (&x)[R][C], float* to, int64_t stride) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(to + r * stride + c * lanes, x[r][c]);
}

// x[r, :] += a[r] y[:], where a row's `a` lies `stride` words after the one before. A word is a
// float, or a pair (simd/pairs.h).
template <int R, int C, class Word, class Vector>
[[gnu::always_inline]] inline void add_products(F32 (&x)[R][C], const Word* a, int64_t stride,
                                                const Vector (&y)[C]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Word word = a[r * stride];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) x[r][c] = fma(word, y[c], x[r][c]);
  }
}

// Bend the scores of a span towards a cap, as far as whole vectors; 0 leaves them.
void cap_scores(float* s, Span span, float cap) {
  if (cap == 0.0f) return;
  for (int64_t i = span.begin / lanes * lanes; i < span.end; i += lanes)
    store(s + i, soft_capped(load(s + i), cap));
}

// Turn the scores of a span into exp(score - highest), times the values' scales; returns the sum
// of the exponentials. Positions outside become 0 up to whole vectors. A score of -inf counts
// nothing; NaN stays.
float exponentials(float* s, Span span, Scales scales, float* highest) {
  const int64_t first = span.begin / lanes * lanes, end = ceil_div(span.end, lanes) * lanes;
  if (scales.k)
    for (int64_t i = first; i < end; i += lanes) store(s + i, load(s + i) * load(scales.k + i));
  cap_scores(s, span, scales.cap);
  for (int64_t i = first; i < span.begin; ++i) s[i] = -INFINITY;
  for (int64_t i = span.end; i < end; ++i) s[i] = -INFINITY;
  F32 best = set1(-INFINITY);
  for (int64_t i = first; i < end; i += lanes) best = max(load(s + i), best);
  *highest = max(best);
  const F32 shift = set1(*highest == -INFINITY ? 0.0f : *highest);
  F32 total = zero();
  for (int64_t i = first; i < end; i += lanes) {
    const F32 e = exp(load(s + i) - shift);
    store(s + i, e);
    total = total + e;
  }
  if (scales.v)
    for (int64_t i = first; i < end; i += lanes) store(s + i, load(s + i) * load(scales.v + i));
  return sum(total);
}

// Add each row's part of a piece to what the row has so far; parts come in the order of positions.
void merge_rows(int64_t rows, int64_t head_dim, Part part, Part state) {
  for (int64_t first = 0; first < rows; first += lanes) {
    const int64_t count = smaller<int64_t>(lanes, rows - first);
    const F32 before = load_tail(state.highest + first, count);
    const F32 new_one = load_tail(part.highest + first, count);
    const F32 top = max(before, new_one);
    float kept[lanes], added[lanes], tops[lanes];
    store(kept, exp(before - top));
    store(added, exp(new_one - top));
    store(tops, top);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = first + i;
      if (part.total[row] == 0.0f) continue;
      const float* from = part.sums + row * part.stride;
      float* to = state.sums + row * state.stride;
      if (state.total[row] == 0.0f) {
        memcpy(to, from, static_cast<size_t>(head_dim) * sizeof(float));
        state.highest[row] = part.highest[row];
        state.total[row] = part.total[row];
        continue;
      }
      for (int64_t d = 0; d < head_dim; d += lanes) {
        const int64_t n = head_dim - d;
        const F32 x = load_tail(to + d, n) * set1(kept[i]);
        store_tail(to + d, fma(load_tail(from + d, n), set1(added[i]), x), n);
      }
      state.highest[row] = tops[i];
      state.total[row] = state.total[row] * kept[i] + part.total[row] * added[i];
    }
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
