// Linears of E4M3 codes, which bfloat16 has all of: they are multiplied as bfloat16 weights are,
// activations rounded as there (linear_tile.h), and scaled once they are added up.
//
// A stretch is what has one scale in a block, and one factor of each row where inputs were rounded
// in groups. The order of an output's sums, in ascending order:
//
//   sum += scale * factor * (sum of codes times activations, of one stretch, as a tile adds it up)
//
// Few tiles of rows make numbers of codes in registers, each for itself; more share a block that
// was made bfloat16. Both multiply the same numbers in the same order.
#pragma once

#include <numeric>

#include "cpu/linear_matrix_tile.h"
#include "cpu/linear_rows.h"
#include "cpu/quantized_block.h"
#include "cpu/rounded_rows.h"
#include "simd/e4m3.h"

namespace quire::QUIRE_ISA {

// Codes as weights, the rest as Format has it. No tiles are made of them unless said below.
template <class Format>
struct CodesFor : Format {
  static constexpr int64_t most_tiles = 0;
};

template <>
struct CodesFor<PairFormat> : PairFormat {
  using Weight = uint8_t;
  static constexpr int step_words = 4;
  static constexpr int64_t most_tiles = 1;

  template <int rows>
  static inline void step(Sums<rows>& sums, const Word* a, const uint8_t* w) {
    const E4m3Numbers numbers0(load_bytes(w)), numbers1(load_bytes(w + register_bytes));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) multiply_add<rows>(sums, a + i, numbers0[i], numbers1[i]);
  }
};

#if defined(__AVX512BF16__)
template <>
struct CodesFor<DotFormat> : DotFormat {
  using Weight = uint8_t;
  static constexpr int step_words = 2;
  static constexpr int64_t most_tiles = 3;

  template <int rows>
  static inline void step(Sums<rows>& sums, const Word* a, const uint8_t* w) {
    const E4m3Bytes* bytes = &e4m3_bytes;
    if (rows > 8) __asm__("" : "+r"(bytes));  // keep no tables: sums take 24 of 32 registers
    const E4m3Pairs pairs0(load_bytes(w), bytes), pairs1(load_bytes(w + register_bytes), bytes);
    add<rows>(sums, a, pairs0.low, pairs1.low);
    add<rows>(sums, a + 1, pairs0.high, pairs1.high);
  }

 private:
  // In assembly: left to itself the compiler keeps broadcasts of many rows, and spills them.
  template <int rows>
  static inline void add(Sums<rows>& sums, const Word* a, Pairs w0, Pairs w1) {
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m) {
      __m512i x;
      __asm__ volatile(
          "vpbroadcastd %[a], %[x]\n\t"
          "vdpbf16ps %[w0], %[x], %[sum0]\n\t"
          "vdpbf16ps %[w1], %[x], %[sum1]"
          : [sum0] "+v"(sums[m][0].v), [sum1] "+v"(sums[m][1].v), [x] "=&v"(x)
          : [a] "m"(a[m * group_words]), [w0] "v"(w0.v), [w1] "v"(w1.v));
    }
  }
};
#endif

// Multiplies a block of one panel at a time. Groups are whole records. See linear_quantized.cpp.
template <class Format_>
class FloatCodeBlocks {
 public:
  using Format = Format_;
  static constexpr bool takes_row_scales = false;
  static constexpr bool takes_group_factors = true;

  FloatCodeBlocks(const QuantizedWeights& weights, const Activations<Format>& activations)
      : weights_(weights),
        activations_(activations),
        map_(weights),
        group_records_(weights.group_size / QuantizedWeights::record_inputs),
        from_codes_(activations.tiles().count <= CodesFor<Format>::most_tiles),
        brains_(static_cast<BF16*>(
            scratch(Slot::weights, block_records * record_codes * sizeof(BF16)))) {}

  static Format format(const QuantizedWeights&) { return {}; }

  // Sums become those of values, where rows were rounded in groups.
  void take_factors(const RoundedRows& rows) {
    if (!rows.factors_of(0)) return;
    factors_ = &rows;
    group_records_ = std::gcd(group_records_, rows.group_size() / QuantizedWeights::record_inputs);
  }

  // Add block `index` of a panel to sums [row][32 outputs].
  void multiply(const BlockPlace& place, float* sums) const {
    const int64_t first = place.index * block_records;
    const int64_t records = activations_.groups_of(place.index) / record_groups;
    if (!from_codes_)
      for (int64_t i = 0; i < records; ++i) read_record(place, first + i, i);
    for (int64_t begin = 0, end; begin < records; begin = end) {
      end = smaller(records, begin + group_records_ - (first + begin) % group_records_);
      const Stretch stretch{begin, end, begin > 0 || place.index > 0};
      alignas(64) float scales[panel];
      const RecordSpan span{place.panel, first + begin, 1};
      read_scales(weights_, map_, span, ScaleKind::scale, 1.0f, scales);
      for (int64_t i = 0; i < activations_.tiles().count; ++i)
        from_codes_ ? multiply_codes(place, stretch, i, scales, sums)
                    : multiply_brains(place, stretch, i, scales, sums);
    }
  }

 private:
  static constexpr int64_t panel = QuantizedWeights::panel_width;
  static constexpr int64_t record_groups = QuantizedWeights::record_inputs / group_inputs<Format>;
  static constexpr int64_t block_records = block_groups<Format> / record_groups;

  // Records of a block, and whether their products are added to others.
  struct Stretch {
    int64_t begin, end;
    bool adds;
  };

  const char* codes_of(const BlockPlace& place, int64_t record) const {
    return place.panel + map_.codes_of(record);
  }

  void read_record(const BlockPlace& place, int64_t record, int64_t to) const {
    const auto* codes = reinterpret_cast<const uint8_t*>(codes_of(place, record));
    BF16* brains = brains_ + to * record_codes;
    for (int word = 0; word < record_codes; word += word_bytes)
      for (int n = 0; n < word_bytes; n += register_bytes) {
        BF16* low = brains + word + n / 2;
        store_e4m3_pairs(load_bytes(codes + word + n), low, low + 2 * panel);
      }
  }

  void multiply_codes(const BlockPlace& place, const Stretch& stretch, int64_t number,
                      const float* scales, float* sums) const {
    const char* codes = codes_of(place, place.index * block_records + stretch.begin);
    if constexpr (CodesFor<Format>::most_tiles > 0)
      multiply_with<CodesFor<Format>>(reinterpret_cast<const uint8_t*>(codes), place, stretch,
                                      number, scales, sums);
  }

  void multiply_brains(const BlockPlace& place, const Stretch& stretch, int64_t number,
                       const float* scales, float* sums) const {
    multiply_with<Format>(brains_ + stretch.begin * record_codes, place, stretch, number, scales,
                          sums);
  }

  // Ask memory for codes while others are multiplied: a single tile those some way ahead of its
  // own, several the next block's, a share each.
  template <class Weights>
  void prefetch_ahead(Tile<Weights>& tile, const BlockPlace& place, const Stretch& stretch,
                      int64_t number) const {
    const int64_t first = place.index * block_records + stretch.begin;
    const int64_t count = activations_.tiles().count, shares = smaller<int64_t>(count, 4);
    const int64_t bytes = stretch.begin * map_.record_bytes / shares;
    tile.prefetch_stride = panel * Weights::step_words * Weights::word_inputs / shares;
    if (count == 1) {
      tile.prefetch = codes_of(place, first) + (8 << 10);
    } else {
      const int64_t share = block_records * map_.record_bytes / shares;
      tile.prefetch = place.next + map_.begin_of(place.next_index * block_records) + bytes +
                      smaller(number, shares - 1) * share;
      if (number >= shares) tile.prefetch_stride = 0;
    }
  }

  template <class Weights>
  void multiply_with(const typename Weights::Weight* weights, const BlockPlace& place,
                     const Stretch& stretch, int64_t number, const float* scales,
                     float* sums) const {
    const Tiles& tiles = activations_.tiles();
    const int64_t first_row = tiles.start(number), rows = tiles.start(number + 1) - first_row;
    alignas(64) float products[Format::tile_rows * panel];
    Tile<Weights> tile{};
    tile.activations =
        activations_.at(place.index, number) + stretch.begin * record_groups * rows * group_words;
    tile.weights = weights;
    tile.rows = rows;
    tile.groups = (stretch.end - stretch.begin) * record_groups;
    tile.first = true;
    tile.out = products;
    prefetch_ahead(tile, place, stretch, number);
    tile_of<Weights>(rows)(tile);
    const int64_t group = factors_ ? (place.index * block_records + stretch.begin) *
                                         QuantizedWeights::record_inputs / factors_->group_size()
                                   : 0;
    float* out = sums + first_row * panel;
    for (int64_t row = 0; row < rows; ++row) {
      const F32 factor = set1(factors_ ? factors_->factors_of(first_row + row)[group] : 1.0f);
      for (int64_t n = 0; n < panel; n += F32::lanes) {
        const int64_t at = row * panel + n;
        store(out + at, fma(load(products + at), load(scales + n) * factor,
                            stretch.adds ? load(out + at) : zero()));
      }
    }
  }

  const QuantizedWeights& weights_;
  const Activations<Format>& activations_;
  const PanelMap map_;
  int64_t group_records_;
  const RoundedRows* factors_ = nullptr;  // where rows were rounded in groups
  const bool from_codes_;
  const TileState<Format> state_{};
  BF16* const brains_;
};

}  // namespace quire::QUIRE_ISA
