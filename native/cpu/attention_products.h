// What attention multiplies a cache of each element type with.
//
//   Products<T>::prepare_queries(...)  queries, times the scale, made ready where they lie
//   Products<T>::with_panel(...)       f(what `attend_panel` takes)
//   Products<T>::DecodeTiles           what `attend_query` multiplies
//   elements_per<T>                    elements that a T of the cache holds
#pragma once

#include "cpu/attention_decode.h"
#include "cpu/attention_decode_dots.h"
#include "cpu/attention_decode_even_odd.h"
#include "cpu/attention_dots.h"
#include "cpu/attention_in_tiles.h"
#include "cpu/attention_latents.h"
#include "cpu/attention_panel.h"
#if !defined(QUIRE_BASE_ISA)
#include "cpu/attention_int4.h"
#endif

namespace quire::QUIRE_ISA {
namespace {

// What rows of a unit are stored in whole numbers of.
#if defined(QUIRE_MATRIX_TILES)
constexpr int64_t row_step = tile_rows;
#else
constexpr int64_t row_step = 1;
#endif

template <class T>
constexpr int64_t elements_per = 1;
template <>
constexpr int64_t elements_per<Int4Pair> = 2;

// Every element is widened to a float.
template <class T>
struct Products {
  using DecodeTiles = FloatTiles<T>;
  template <class Function>
  static void with_panel(Panel floats, Scales, bool, const Function& f) {
    f(floats);
  }
  static void prepare_queries(float*, int64_t, int64_t, bool) {}
};

#if !defined(QUIRE_BASE_ISA)
template <>
struct Products<Int4Pair> {
  using DecodeTiles = Int4Tiles;
  template <class Function>
  static void with_panel(Panel floats, Scales scales, bool, const Function& f) {
    f(Int4Panel{floats, scales});
  }
  static void prepare_queries(float*, int64_t, int64_t, bool) {}
};
#endif

#if defined(QUIRE_DOTS)
template <>
struct Products<BF16> {
  using DecodeTiles = DotTiles;
  template <class Function>
  static void with_panel(Panel floats, Scales, bool is_latent, const Function& f) {
    if (is_latent && LatentRows::holds(floats))
      f(LatentRows(floats));
    else
      f(DotPanel(floats));
  }
  static void prepare_queries(float* q, int64_t rows, int64_t head_dim, bool) {
    round_queries(q, rows, head_dim);
  }
};
#elif defined(QUIRE_MATRIX_TILES)
template <>
struct Products<BF16> {
  using DecodeTiles = EvenOddTiles;
  template <class Function>
  static void with_panel(Panel floats, Scales, bool, const Function& f) {
    f(PairPanel(floats));
  }
  static void prepare_queries(float* q, int64_t rows, int64_t head_dim, bool in_place) {
    if (!in_place) return round_queries(q, rows, head_dim);
    const int64_t floats = rows * head_dim;
    for (int64_t i = 0; i < floats; i += lanes)
      store_tail(q + i, rounded(load_tail(q + i, floats - i)), floats - i);
  }
};
#endif

}  // namespace
}  // namespace quire::QUIRE_ISA
