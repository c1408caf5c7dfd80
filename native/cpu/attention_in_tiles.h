// Attention over a bfloat16 cache by matrix tiles (attention_pairs.h), many rows.
//
// Sums are those of simd/matrix_tiles.h: of each 32 elements, or 32 absolute positions, the even
// and the odd ones' products are added up apart, from 0 on; what is added to the sum is both
// together. A tile multiplies 32 positions whatever a row sees of them, and weights of 0 change no
// sum of finite numbers. Where values are not finite each row goes alone, by vectors.
#pragma once

#include "cpu/attention_pairs.h"

namespace quire::QUIRE_ISA {
namespace {

#if defined(QUIRE_MATRIX_TILES)

constexpr int64_t step_positions = 2 * step_pairs;
constexpr int64_t panel_line = panel_width * static_cast<int64_t>(sizeof(uint32_t));
constexpr int64_t weights_line = piece_positions * static_cast<int64_t>(sizeof(float));

// As `pair_weights`; rounded as `rounded` does, one vector by one, so that a decode's are the same.
float tile_weights(float* s, Span span, Span region, float cap, float* highest) {
  auto* e = reinterpret_cast<uint32_t*>(s);
  return pair_weights(s, span, region, cap, highest, [=](int64_t i, F32 x, F32 y) {
    store_pairs(e + i / 2, round_pairs(x, y));
    return rounded(x) + rounded(y);
  });
}

// sums (16 row_tiles, 32) = left (16 row_tiles, 32 steps) right (32 steps, 32), in pairs.
// `left_line` and `sums_line` are bytes from one row to the next.
template <int row_tiles>
void multiply_tiles(const uint32_t* left, int64_t left_line, const uint32_t* right, int64_t steps,
                    float* sums, int64_t sums_line) {
  float* const second = sums + 16 * sums_line / static_cast<int64_t>(sizeof(float));
  zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
  for (int64_t i = 0; i < steps; ++i, left += step_pairs, right += step_pairs * panel_width) {
    load_tile<4>(left, left_line);
    load_tile<6>(right, panel_line);
    multiply_bfloat16<0, 4, 6>();
    load_tile<7>(right + 16, panel_line);
    multiply_bfloat16<1, 4, 7>();
    if constexpr (row_tiles == 2) {
      load_tile<5>(left + 16 * left_line / static_cast<int64_t>(sizeof(uint32_t)), left_line);
      multiply_bfloat16<2, 5, 6>();
      multiply_bfloat16<3, 5, 7>();
    }
  }
  store_tile<0>(sums, sums_line);
  store_tile<1>(sums + 16, sums_line);
  if constexpr (row_tiles == 2) {
    store_tile<2>(second, sums_line);
    store_tile<3>(second + 16, sums_line);
  }
}

// Values outside `seen`, as far as whole steps, become 0. False when one inside is not finite.
bool clear_values(PairPanel panel, Span seen, Span region) {
  const uint32_t exponents = 0x7f80;
  for (int64_t column = 0; column < panel.value_dim; column += panel_width) {
    uint32_t* v = panel.v + column * piece_pairs;
    const Span outside[] = {{region.begin, seen.begin}, {seen.end, region.end}};
    for (const Span& unseen : outside)
      each_pair_run(unseen, [&](int64_t j, int64_t end, uint32_t halves) {
        for (uint32_t* p = v + j * panel_width; p < v + end * panel_width; ++p) *p &= ~halves;
      });
    bool finite = true;
    for (const uint32_t* p = v + region.begin / 2 * panel_width;
         p < v + region.end / 2 * panel_width; ++p)
      finite &= (*p & exponents) != exponents && (*p >> 16 & exponents) != exponents;
    if (!finite) return false;
  }
  return true;
}

// One row's sums over the positions that it sees, with the bits of tiles.
void add_values_alone(const uint32_t* e, Span span, PairPanel panel, float* sums) {
  const FlushDenormals flush;
  for (int64_t column = 0; column < panel.value_dim; column += lanes) {
    const uint32_t* v =
        panel.v + column / panel_width * panel_width * piece_pairs + column % panel_width;
    F32 sum = zero();
    for (int64_t first = span.begin / step_positions * step_positions; first < span.end;
         first += step_positions) {
      F32 even = zero(), odd = zero();
      for (int64_t j = larger(first, span.begin); j < smaller(first + step_positions, span.end);
           ++j) {
        const Pairs weight = set1_pair(e[j / 2]), value = load_pairs(v + j / 2 * panel_width);
        if (j % 2)
          odd = fma(widen_odd(weight), widen_odd(value), odd);
        else
          even = fma(widen_even(weight), widen_even(value), even);
      }
      sum = sum + (even + odd);
    }
    store(sums + column, sum);
  }
}

// f(one tile of rows or two, first row, rows, the steps that they see)
template <class Function>
void each_row_tile(const PanelRows& rows, int64_t count, const Function& f) {
  for (int64_t row = 0; row < count; row += 2 * tile_rows) {
    const int64_t left = smaller<int64_t>(2 * tile_rows, count - row);
    const Span seen = rows.seen(row, left);
    if (seen.empty()) continue;
    const Span steps{seen.begin / step_positions, ceil_div(seen.end, step_positions)};
    if (left > tile_rows)
      f(Tile<2>{}, row, steps);
    else
      f(Tile<1>{}, row, steps);
  }
}

// All rows against the positions `whole` of the piece. Rows are stored in whole tiles.
void attend_panel(const PanelRows& rows, int64_t count, Span whole, PairPanel panel,
                  Scales scales) {
  const TileConfiguration tiles(tile_row_bytes);
  const int64_t pairs = head_pairs(panel.head_dim), stride = rows.part.stride;
  const Span region{whole.begin / step_positions * step_positions,
                    ceil_div(whole.end, step_positions) * step_positions};
  const auto* q = reinterpret_cast<const uint32_t*>(rows.q);
  each_row_tile(rows, count, [&](auto tile, int64_t row, Span steps) {
    for (int64_t step = steps.begin; step < steps.end; ++step) {
      const int64_t column = step * panel_width;
      multiply_tiles<decltype(tile)::rows>(q + row * pairs, 4 * pairs, panel.k + column * pairs,
                                           pairs / step_pairs,
                                           rows.s + row * piece_positions + column, weights_line);
    }
  });
  weigh_rows(rows, count, [&](int64_t row, Span span) {
    return tile_weights(rows.s + row * piece_positions, span, region, scales.cap,
                        rows.part.highest + row);
  });
  const auto* e = reinterpret_cast<const uint32_t*>(rows.s);
  if (!clear_values(panel, whole, region)) {
    for (int64_t row = 0; row < count; ++row)
      add_values_alone(e + row * piece_positions, rows.spans[row], panel,
                       rows.part.sums + row * stride);
    return;
  }
  for (int64_t column = 0; column < panel.value_dim; column += panel_width)
    each_row_tile(rows, count, [&](auto tile, int64_t row, Span steps) {
      multiply_tiles<decltype(tile)::rows>(
          e + row * piece_positions + steps.begin * step_pairs, weights_line,
          panel.v + column * piece_pairs + steps.begin * step_pairs * panel_width,
          steps.end - steps.begin, rows.part.sums + row * stride + column, 4 * stride);
    });
}

static_assert(panel_width == step_positions, "a step of positions is a panel's tile of columns");

#endif

}  // namespace
}  // namespace quire::QUIRE_ISA
