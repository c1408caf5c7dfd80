// Many query rows of one KV head against one piece of the context, unpacked first: here to floats.
//
//   K  (256 / width, H, width)      V  (ceil(H / width), 256, width)      width: a tile's columns
//
// Elements are converted once for all rows, and a tile's columns lie side by side, so that they
// stay in the first cache while the rows go by, tile after tile. Any block size will do.
#pragma once

#include "cpu/attention_tiles.h"
#include "simd/turned_words.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int panel_columns = 2;
constexpr int64_t panel_width = panel_columns * lanes;
constexpr int panel_rows = lanes == 16 ? 8 : 4;
// Positions of V whose columns, with the weights of a tile of rows, stay in a small first cache.
constexpr int64_t value_positions = 128;

// Words that K and V of a piece become: here floats, one for each element of K and each position of
// V.
//
// What `attend_panel` asks of a panel: load_words(p, share) loads a vector of words, of which
// `share` is wanted; each_run(span, f) calls f(first word, end word, share) over the positions;
// score_rows(panel, rows, count, whole) computes scores; values(panel, column) are what
// `value_tile` loads a tile of columns from.
struct Panel {
  using Word = float;
  using Vector = F32;
  struct Whole {};
  static constexpr int64_t word_positions = 1;
  static constexpr Whole all{};

  float *k, *v;
  int64_t head_dim, value_dim;
  static int64_t columns(int64_t head_dim) { return ceil_div(head_dim, panel_width) * panel_width; }
  static int64_t floats(int64_t head_dim, int64_t value_dim) {
    return piece_positions * (columns(head_dim) + columns(value_dim));
  }

  int64_t words() const { return head_dim; }  // of K that a position has
  static F32 load_words(const float* p, Whole) { return load(p); }
  template <class Function>
  static void each_run(Span span, const Function& f) {
    if (!span.empty()) f(span.begin, span.end, all);
  }
  static float weights(float* s, Span span, Scales scales, float* highest) {
    return exponentials(s, span, scales, highest);
  }
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

// Turn words of 32 bits of `lanes` rows, `stride` bytes apart, round: `count` of each, row i's word
// w to word i of line w, `width` words apart. Rows are read as far as a multiple of 4.
template <class Word>
void turn_round(const void* rows, int64_t stride, int64_t count, Word* to,
                int64_t width = panel_width) {
  static_assert(sizeof(Word) == 4 && register_bytes == 4 * lanes, "a line is a register");
  const char* from = static_cast<const char*>(rows);
  for (int64_t word = 0; word < count; word += 4, from += 16) {
    Bytes lines[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) lines[i] = gather_lanes(from + i * stride, 4 * stride);
    turn_words(lines);
    for (int i = 0; i < smaller<int64_t>(4, count - word); ++i)
      memcpy(to + (word + i) * width, &lines[i], sizeof(Bytes));
  }
}

// As `unpack_vector`, of positions whose elements lie side by side, rows `stride` apart.
template <class T>
void turn_rows(const T* rows, int64_t stride, int64_t j, Panel panel) {
  const int64_t dim = panel.head_dim;
  float* to = panel.k + j / panel_width * dim * panel_width + j % panel_width;
  float square[lanes * lanes];
  for (int64_t d = 0; d < dim; d += lanes) {
    const int64_t count = smaller<int64_t>(lanes, dim - d);
    for (int64_t i = 0; i < lanes; ++i)
      store(square + i * lanes, load_tail(rows + i * stride + d, count));
    turn_round(square, lanes * sizeof(float), count, to + d * panel_width);
  }
}

// Unpack the values of `count` positions from j on, rows `stride` apart.
template <class T>
void unpack_value_rows(const T* rows, int64_t stride, int64_t j, int64_t count, Panel panel) {
  const int64_t dim = panel.value_dim;
  for (int64_t d = 0; d < Panel::columns(dim); d += lanes) {
    float* to = panel.v + (d / panel_width * piece_positions + j) * panel_width + d % panel_width;
    for (int64_t i = 0; i < count; ++i)
      store(to + i * panel_width, d < dim ? load_tail(rows + i * stride + d, dim - d) : zero());
  }
}

// Unpack the values of position j; columns past the head become 0.
template <class T>
void unpack_values(const T* v, int64_t j, Panel panel) {
  const int64_t dim = panel.value_dim;
  for (int64_t d = 0; d < Panel::columns(dim); d += lanes) {
    float* to = panel.v + (d / panel_width * piece_positions + j) * panel_width + d % panel_width;
    store(to, d < dim ? load_tail(v + d, dim - d) : zero());
  }
}

// C vectors of words of a panel's row.
template <class AnyPanel, int C, class Share>
[[gnu::always_inline]] inline void load_row(typename AnyPanel::Vector (&x)[C],
                                            const typename AnyPanel::Word* row, Share share) {
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) x[c] = AnyPanel::load_words(row + c * lanes, share);
}

// Rows of a unit, queries rising: their queries (rows, words), spans, scores (rows, 256) and parts.
struct PanelRows {
  const float* q;
  const Span* spans;
  float* s;
  Part part;

  // The positions that some of `count` rows see, and those that all see: spans rise with queries.
  Span seen(int64_t row, int64_t count) const {
    return {spans[row].begin, spans[row + count - 1].end};
  }
  Span shared(int64_t row, int64_t count) const {
    return {spans[row + count - 1].begin, spans[row].end};
  }
};

// Scores of R rows for one tile of positions.
template <class AnyPanel, int R>
void score_tile(const typename AnyPanel::Word* q, int64_t words, const typename AnyPanel::Word* k,
                float* s) {
  F32 sums[R][panel_columns] = {};
  for (int64_t i = 0; i < words; ++i) {
    typename AnyPanel::Vector keys[panel_columns];
    load_row<AnyPanel>(keys, k + i * panel_width, AnyPanel::all);
    add_products(sums, q + i, words, keys);
  }
  store_sums(sums, s, piece_positions);
}

// A tile of columns of V.
template <class AnyPanel>
struct PanelValues {
  const typename AnyPanel::Word* v;

  template <int C, class Share>
  [[gnu::always_inline]] void load(typename AnyPanel::Vector (&x)[C], int64_t j,
                                   Share share) const {
    load_row<AnyPanel>(x, v + j * panel_width, share);
  }
};

template <class AnyPanel>
PanelValues<AnyPanel> values(const AnyPanel& panel, int64_t column) {
  return {panel.v + column * (piece_positions / AnyPanel::word_positions)};
}

// sums[r] += sum_j e[r, j] v[j] over words [first, end) for one tile of columns.
template <class AnyPanel, int R, class Share, class Values>
void value_tile(const typename AnyPanel::Word* e, int64_t first, int64_t end, Share share,
                const Values& v, float* sums, int64_t stride) {
  F32 x[R][panel_columns];
  load_sums(x, sums, stride);
  for (int64_t j = first; j < end; ++j) {
    typename AnyPanel::Vector loaded[panel_columns];
    v.load(loaded, j, share);
    add_products(x, e + j, piece_positions, loaded);
  }
  store_sums(x, sums, stride);
}

// The values of `span` for R rows: where all rows see all positions of a word they share it, before
// and after that each row goes alone.
template <class AnyPanel, int R, class Values>
void value_rows(const PanelRows& rows, int64_t row, Span span, int64_t column, const Values& v) {
  constexpr int64_t step = AnyPanel::word_positions;
  const int64_t stride = rows.part.stride;
  const auto* e = reinterpret_cast<const typename AnyPanel::Word*>(rows.s) + row * piece_positions;
  float* sums = rows.part.sums + row * stride + column;
  Span all = span.within(rows.shared(row, R));
  all = {ceil_div(all.begin, step) * step, all.end / step * step};
  if (all.empty()) all = {span.end, span.end};
  const auto alone = [&](Span region) {
    for (int r = 0; r < R; ++r)
      AnyPanel::each_run(rows.spans[row + r].within(region),
                         [&](int64_t j, int64_t end, auto share) {
                           value_tile<AnyPanel, 1>(e + r * piece_positions, j, end, share, v,
                                                   sums + r * stride, stride);
                         });
  };
  alone({span.begin, all.begin});
  if (!all.empty())
    value_tile<AnyPanel, R>(e, all.begin / step, all.end / step, AnyPanel::all, v, sums, stride);
  alone({all.end, span.end});
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

// Turn each row's scores into weights: weights(row, span) returns their total.
template <class Weights>
void weigh_rows(const PanelRows& rows, int64_t count, const Weights& weights) {
  for (int64_t row = 0; row < count; ++row) {
    const Span span = rows.spans[row];
    rows.part.total[row] = span.empty() ? 0.0f : weights(row, span);
  }
}

// Scores of all rows, as far as they see the positions `whole`.
template <class AnyPanel>
void score_rows(const AnyPanel& panel, const PanelRows& rows, int64_t count, Span whole) {
  const int64_t words = panel.words();
  const auto* q = reinterpret_cast<const typename AnyPanel::Word*>(rows.q);
  const int64_t first = whole.begin / panel_width * panel_width;
  for (int64_t column = first; column < whole.end; column += panel_width)
    each_tile<panel_rows>(0, count, [&](auto tile, int64_t row) {
      constexpr int R = decltype(tile)::rows;
      if (!rows.seen(row, R).within({column, column + panel_width}).empty())
        score_tile<AnyPanel, R>(q + row * words, words, panel.k + column * words,
                                rows.s + row * piece_positions + column);
    });
}

// All rows against the positions `whole` of the piece.
template <class AnyPanel>
void attend_panel(const PanelRows& rows, int64_t count, Span whole, AnyPanel panel, Scales scales) {
  const int64_t dim = panel.value_dim;
  score_rows(panel, rows, count, whole);
  weigh_rows(rows, count, [&](int64_t row, Span span) {
    rows.part.clear(row);
    return AnyPanel::weights(rows.s + row * piece_positions, span, scales, rows.part.highest + row);
  });
  for (int64_t begin = 0; begin < piece_positions; begin += value_positions) {
    const Span span = whole.within({begin, begin + value_positions});
    for (int64_t column = 0; !span.empty() && column < dim; column += panel_width) {
      const auto v = values(panel, column);
      each_tile<panel_rows>(0, count, [&](auto tile, int64_t row) {
        value_rows<AnyPanel, decltype(tile)::rows>(rows, row, span, column, v);
      });
    }
  }
}

}  // namespace
}  // namespace quire::QUIRE_ISA
