// Attention over a cache of 4 bits: pairs of codes become floats in registers as a decode reads
// them, or in the panel of a prefill, code * scale + minimum either way.
//
// The product has 12 bits, so that is one rounding, fused or not. A vector of K is one element of
// several positions, whose scales lie side by side; a vector of V is elements of one position,
// which share theirs.
#pragma once

#include "cpu/attention_decode.h"
#include "cpu/attention_panel.h"
#include "simd/nibbles.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t group_pairs = int4_group / 2;

// The scales and minima of one group, of positions side by side; `scales` are those of group 0.
struct GroupScales {
  const float *scale, *minimum;
  GroupScales(const float* scales, int64_t group)
      : scale(scales + 2 * group * scale_stride), minimum(scale + scale_stride) {}
};

// Floats of K and V, with what codes are turned into them by.
struct Int4Panel : Panel {
  Scales scales;
  static float weights(float* s, Span span, Scales of_head, float* highest) {
    return exponentials(s, span, of_head.cap_alone(), highest);
  }
};

void unpack_position(const Int4Pair* k, int64_t k_stride, int64_t j, Int4Panel panel) {
  float* to = panel.k + j / panel_width * panel.head_dim * panel_width + j % panel_width;
  for (int64_t i = 0; i < panel.head_dim; ++i) {
    const GroupScales group(panel.scales.k + j, i / int4_group);
    const int code = k[i / 2 * k_stride].bits >> i % 2 * 4 & 15;
    to[i * panel_width] = static_cast<float>(code) * *group.scale + *group.minimum;
  }
}

void unpack_vector(const Int4Pair* k, int64_t k_stride, int64_t j, Int4Panel panel) {
  float* to = panel.k + j / panel_width * panel.head_dim * panel_width + j % panel_width;
  for (int64_t first = 0; first < panel.head_dim; first += int4_group) {
    const GroupScales group(panel.scales.k + j, first / int4_group);
    const F32 scale = load(group.scale), minimum = load(group.minimum);
    for (int64_t i = first; i < first + int4_group; i += 2) {
      const Words pairs = load_words(k + i / 2 * k_stride);
      store(to + i * panel_width, fma(lower_codes(pairs), scale, minimum));
      store(to + (i + 1) * panel_width, fma(upper_codes(pairs), scale, minimum));
    }
  }
}

void unpack_values(const Int4Pair* v, int64_t j, Int4Panel panel) {
  const auto at = [=](int64_t d) {
    return panel.v + (d / panel_width * piece_positions + j) * panel_width + d % panel_width;
  };
  for (int64_t first = 0; first < panel.head_dim; first += int4_group) {
    const GroupScales group(panel.scales.v + j, first / int4_group);
    const CodeValues values(*group.scale, *group.minimum);
    for (int64_t i = 0; i < group_pairs; i += lanes) {
      const Words pairs = load_words(v + first / 2 + i);
      store(at(first + i), values.lower(pairs));
      store(at(first + i + group_pairs), values.upper(pairs));
    }
  }
}

// Tiles of attention_decode.h.
struct Int4Tiles {
  using Word = float;
  struct Mode {};

  // Fewer than of other types: scales and minima of the columns are in registers, too.
  static constexpr int columns(int rows) {
    const int most = FloatTiles<Int4Pair>::columns(rows);
    return rows <= 2 || most == 1 ? most : 2;
  }
  static int64_t words(int64_t head_dim) { return head_dim; }

  template <int R, int C>
  [[gnu::always_inline]] static void score(const float* q, int64_t head_dim,
                                           const Strip<Int4Pair, C>& strip, int64_t stride,
                                           F32 (&sums)[R][C]) {
    const int64_t within_line = larger<int64_t>(1, 64 / stride) - 1;  // a power of 2, - 1
    for (int64_t first = 0; first < head_dim; first += int4_group) {
      const GroupScales group(strip.scales, first / int4_group);
      F32 scale[C], minimum[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        scale[c] = load(group.scale + c * lanes);
        minimum[c] = load(group.minimum + c * lanes);
      }
      for (int64_t i = first; i < first + int4_group; i += 2) {
        const int64_t row = i / 2;
        if ((row & within_line) == 0)
#pragma GCC unroll 8
          for (int c = 0; c < C; ++c) prefetch(strip.next[c] + row * stride);
        F32 even[C], odd[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
          const Words pairs = load_words(strip.k[c] + row * stride);
          even[c] = fma(lower_codes(pairs), scale[c], minimum[c]);
          odd[c] = fma(upper_codes(pairs), scale[c], minimum[c]);
        }
        add_products(sums, q + i, head_dim, even);
        add_products(sums, q + i + 1, head_dim, odd);
      }
    }
  }

  static float weights(float* s, Span span, Scales scales, float* highest) {
    return exponentials(s, span, scales.cap_alone(), highest);
  }

  template <bool Tail, int R, int C>
  [[gnu::always_inline]] static void add_values(const float* e, Span span,
                                                const Piece<Int4Pair>& piece, int64_t head,
                                                int64_t column, F32 (&sums)[R][C]) {
    static_assert(int4_group % lanes == 0);  // no tails: columns are whole vectors of a group
    constexpr int groups = larger<int>(1, C * lanes / int4_group);
    const int64_t group = column / int4_group, within = column % int4_group % group_pairs;
    const uint32_t shift = column % int4_group / group_pairs * 4;
    const float* scales = piece.scales.of(head).v;
    for (int64_t j = span.begin; j < span.end;) {
      const int64_t stop = smaller(span.end, (j / lanes + 1) * lanes);
      for (Values<Int4Pair> at(piece, head, j, group * group_pairs + within); j < stop;
           ++j, at.advance(piece.v_stride)) {
        prefetch(at.ahead);
        F32 values[C];
#pragma GCC unroll 8
        for (int g = 0; g < groups; ++g) {
          const GroupScales of(scales + j, group + g);
          widen<C>(at.v + g * group_pairs, shift, CodeValues(*of.scale, *of.minimum),
                   values + g * (int4_group / lanes));
        }
        add_products(sums, e + j, piece_positions, values);
      }
    }
  }

 private:
  // One group's elements, or C vectors of one half of them.
  template <int C>
  [[gnu::always_inline]] static void widen(const Int4Pair* v, uint32_t shift, CodeValues of,
                                           F32* values) {
    if constexpr (C * lanes >= int4_group) {
      constexpr int half = group_pairs / lanes;
#pragma GCC unroll 8
      for (int i = 0; i < half; ++i) {
        const Words pairs = load_words(v + i * lanes);
        values[i] = of.lower(pairs);
        values[i + half] = of.upper(pairs);
      }
    } else {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) values[c] = of.lower(load_words(v + c * lanes) >> shift);
    }
  }
};

}  // namespace
}  // namespace quire::QUIRE_ISA
