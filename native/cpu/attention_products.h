// What attention multiplies a cache of each element type with.
//
//   Products<T>::prepare_queries(q, rows, head_dim)   queries times the scale, in place
//   Products<T>::UnpackedPanel                        what `attend_panel` takes
//   Products<T>::attend_query(...)                    a decode's piece
#pragma once

#include "cpu/attention_decode.h"
#include "cpu/attention_decode_pairs.h"
#include "cpu/attention_pairs.h"
#include "cpu/attention_panel.h"

namespace quire::QUIRE_ISA {
namespace {

// Every element is widened to a float.
template <class T>
struct Products {
  using UnpackedPanel = Panel;
  static void prepare_queries(float*, int64_t, int64_t) {}
  static void attend_query(int64_t rows_per_head, const float* q, Span span, const Piece<T>& piece,
                           Scales scales, float* s, Part part) {
    with_rows(rows_per_head, [&](auto rows) {
      attend_heads<decltype(rows)::value>(q, span, piece, scales, s, part);
    });
  }
};

#if defined(QUIRE_PAIRS)
template <>
struct Products<BF16> {
  using UnpackedPanel = PairPanel;
  static void prepare_queries(float* q, int64_t rows, int64_t head_dim) {
    round_queries(q, rows, head_dim);
  }
  static void attend_query(int64_t rows_per_head, const float* q, Span span,
                           const Piece<BF16>& piece, Scales, float* s, Part part) {
    const auto* pairs = reinterpret_cast<const uint32_t*>(q);
    with_rows(rows_per_head, [&](auto rows) {
      attend_heads_in_pairs<decltype(rows)::value>(pairs, span, piece, s, part);
    });
  }
};
#endif

}  // namespace
}  // namespace quire::QUIRE_ISA
