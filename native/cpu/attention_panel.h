// Many query rows of one KV head against one piece of the context, unpacked to floats first.
//
//   K  (256 / width, H, width)      V  (ceil(H / width), 256, width)      width: a tile's columns
//
// Elements are converted once for all rows, and a tile's columns lie side by side, so that they
// stay in the first cache while the rows go by, tile after tile. Any block size will do.
#pragma once

#include "cpu/attention_tiles.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int panel_columns = 2;
constexpr int64_t panel_width = panel_columns * lanes;
constexpr int panel_rows = lanes == 16 ? 8 : 4;
// Positions of V whose columns, with the weights of a tile of rows, stay in a small first cache.
constexpr int64_t value_positions = 128;

struct Panel {
  float *k, *v;
  int64_t head_dim;
  static int64_t columns(int64_t head_dim) { return ceil_div(head_dim, panel_width) * panel_width; }
  static int64_t floats(int64_t head_dim) { return 2 * piece_positions * columns(head_dim); }
};

// Unpack position j: K's element i is k[i * k_stride].
template <class T>
void unpack_position(const T* k, int64_t k_stride, int64_t j, Panel panel) {
  float* to = panel.k + j / panel_width * panel.head_dim * panel_width + j % panel_width;
  for (int64_t i = 0; i < panel.head_dim; ++i) {
    float widened[lanes];
    store(widened, load_partial(k + i * k_stride, 1));
    to[i * panel_width] = widened[0];
  }
}

// The same of the `lanes` positions from j, a multiple of lanes, on.
template <class T>
void unpack_vector(const T* k, int64_t k_stride, int64_t j, Panel panel) {
  float* to = panel.k + j / panel_width * panel.head_dim * panel_width + j % panel_width;
  for (int64_t i = 0; i < panel.head_dim; ++i) store(to + i * panel_width, load(k + i * k_stride));
}

// Unpack the values of position j; columns past the head become 0.
template <class T>
void unpack_values(const T* v, int64_t j, Panel panel) {
  const int64_t dim = panel.head_dim;
  for (int64_t d = 0; d < Panel::columns(dim); d += lanes) {
    float* to = panel.v + (d / panel_width * piece_positions + j) * panel_width + d % panel_width;
    store(to, d < dim ? load_tail(v + d, dim - d) : zero());
  }
}

// sums[r] += sum_j e[r, j] v[j] over positions [begin, end) for one tile of columns.
template <int R>
void value_panel(const float* e, Span span, const float* v, float* sums, int64_t stride) {
  F32 x[R][panel_columns];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < panel_columns; ++c) x[r][c] = load(sums + r * stride + c * lanes);
  for (int64_t j = span.begin; j < span.end; ++j) {
    F32 values[panel_columns];
#pragma GCC unroll 8
    for (int c = 0; c < panel_columns; ++c) values[c] = load(v + j * panel_width + c * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float weight = e[r * piece_positions + j];
#pragma GCC unroll 8
      for (int c = 0; c < panel_columns; ++c) x[r][c] = fma(weight, values[c], x[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < panel_columns; ++c) store(sums + r * stride + c * lanes, x[r][c]);
}

// Rows of a unit: their queries (rows, H), spans, scores (rows, 256) and parts.
struct PanelRows {
  const float* q;
  const Span* spans;
  float* s;
  Part part;
};

// Scores of R rows for one tile of positions, unless no row sees any of it.
template <int R>
void score_rows(const PanelRows& rows, int64_t row, int64_t column, const float* k, int64_t dim) {
  bool seen = false;
  for (int r = 0; r < R; ++r) {
    const Span span = rows.spans[row + r];
    seen |= span.begin < span.end && span.begin < column + panel_width && span.end > column;
  }
  if (!seen) return;
  const float* vectors[panel_columns];
  for (int c = 0; c < panel_columns; ++c) vectors[c] = k + c * lanes;
  score_tile<R, panel_columns, false, float>(rows.q + row * dim, dim, vectors, panel_width, nullptr,
                                             rows.s + row * piece_positions + column);
}

// The values of `span` for R rows: where all rows see a position they share its V, before and
// after that each row goes alone.
template <int R>
void value_rows(const PanelRows& rows, int64_t row, Span span, int64_t column, const float* v) {
  const int64_t stride = rows.part.stride;
  const float* e = rows.s + row * piece_positions;
  float* sums = rows.part.sums + row * stride + column;
  Span all = span;
  for (int r = 0; r < R; ++r) all = all.within(rows.spans[row + r]);
  if (all.begin >= all.end) all = {span.end, span.end};
  for (int r = 0; r < R; ++r) {
    const Span own = rows.spans[row + r].within({span.begin, all.begin});
    if (own.begin < own.end)
      value_panel<1>(e + r * piece_positions, own, v, sums + r * stride, stride);
  }
  if (all.begin < all.end) value_panel<R>(e, all, v, sums, stride);
  for (int r = 0; r < R; ++r) {
    const Span own = rows.spans[row + r].within({all.end, span.end});
    if (own.begin < own.end)
      value_panel<1>(e + r * piece_positions, own, v, sums + r * stride, stride);
  }
}

template <int R>
struct Tile {
  static constexpr int rows = R;
};

// f(Tile<R>, row) over all rows, the largest tiles first.
template <int R, class Function>
void each_tile(int64_t row, int64_t end, const Function& f) {
  for (; row + R <= end; row += R) f(Tile<R>{}, row);
  if constexpr (R > 1) each_tile<R / 2>(row, end, f);
}

// All rows against the positions `whole` of the piece.
void attend_panel(const PanelRows& rows, int64_t count, Span whole, Panel panel, Scales scales) {
  const int64_t dim = panel.head_dim;
  const int64_t first = whole.begin / panel_width * panel_width;
  for (int64_t column = first; column < whole.end; column += panel_width) {
    const float* k = panel.k + column * dim;
    each_tile<panel_rows>(0, count, [&](auto tile, int64_t row) {
      score_rows<decltype(tile)::rows>(rows, row, column, k, dim);
    });
  }
  for (int64_t row = 0; row < count; ++row) {
    const Span span = rows.spans[row];
    rows.part.total[row] = 0.0f;
    if (span.begin >= span.end) continue;
    float* e = rows.s + row * piece_positions;
    rows.part.total[row] = exponentials(e, span, scales, rows.part.highest + row);
    memset(rows.part.sums + row * rows.part.stride, 0,
           static_cast<size_t>(rows.part.stride) * sizeof(float));
  }
  for (int64_t begin = 0; begin < piece_positions; begin += value_positions) {
    const Span span = whole.within({begin, begin + value_positions});
    for (int64_t column = 0; span.begin < span.end && column < dim; column += panel_width) {
      const float* v = panel.v + column * piece_positions;
      each_tile<panel_rows>(0, count, [&](auto tile, int64_t row) {
        value_rows<decltype(tile)::rows>(rows, row, span, column, v);
      });
    }
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
