// Attention over a bfloat16 cache by dot products of pairs (attention_pairs.h).
//
// Of each pair the instruction adds both products to the sum.
#pragma once

#include "cpu/attention_pairs.h"

namespace quire::QUIRE_ISA {
namespace {

#if defined(QUIRE_DOTS)

// Turn the 256 scores of a row into weights, as pairs in the same memory; returns their sum.
float dot_weights(float* s, Span span, float cap, float* highest) {
  auto* e = reinterpret_cast<uint32_t*>(s);
  return pair_weights(s, span, span, cap, highest, [=](int64_t i, F32 x, F32 y) {
    const Pairs pairs = round_pairs(x, y);
    store_pairs(e + i / 2, pairs);
    return widen_even(pairs) + widen_odd(pairs);
  });
}

// The panel as vectors multiply it. Where a row sees one position of a pair, the other's half of
// the values is left out.
struct DotPanel : PairPanel {
  using PairPanel::PairPanel;
  using Word = uint32_t;
  using Vector = Pairs;
  static constexpr int64_t word_positions = 2;
  static constexpr uint32_t all = both_halves;

  static Pairs load_words(const uint32_t* p, uint32_t halves) {
    return keep(load_pairs(p), halves);
  }
  template <class Function>
  static void each_run(Span span, const Function& f) {
    each_pair_run(span, f);
  }
  static float weights(float* s, Span span, Scales scales, float* highest) {
    return dot_weights(s, span, scales.cap, highest);
  }
};

#endif

}  // namespace
}  // namespace quire::QUIRE_ISA
