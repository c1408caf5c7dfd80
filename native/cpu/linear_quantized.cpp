// y = x W^T + bias for quantized weights, one row to thousands. One micro-kernel, quantized_tile.h,
// takes codes as they are packed when rows are few, and as bytes unpacked to L1 when they are many.
#include "cpu/linear_rows.h"
#include "cpu/quantized_block.h"
#include "cpu/quantized_matrix_tile.h"
#include "cpu/quantized_tile.h"
#include "include/kernels.h"
#include "runtime/matrix_rows.h"

namespace quire::QUIRE_ISA {
namespace {

constexpr int64_t panel_width = QuantizedWeights::panel_width;
constexpr int64_t record_inputs = QuantizedWeights::record_inputs;

// Rows multiplied together: their activations of one block stay in L2 (a KiB each).
constexpr int64_t max_rows_at_once = 252;

// The instance for a tile of 1 .. tile_rows rows.
template <class Codes, int halves, int rows = 1>
RunQuantizedTile tile_of_rows(int64_t wanted) {
  if constexpr (rows < QuantizedFormat::tile_rows)
    if (wanted != rows) return tile_of_rows<Codes, halves, rows + 1>(wanted);
  return run_quantized_tile<Codes, halves, rows>;
}

bool uses_bytes(const QuantizedWeights& weights) { return weights.bits == 8 || weights.has_book; }
bool has_halves(const QuantizedWeights& weights) { return weights.group_size < record_inputs; }

// Tiles of codes that were unpacked to bytes.
template <int halves>
RunQuantizedTile tile_of_bytes(const QuantizedWeights& weights, int64_t rows) {
  if (uses_bytes(weights)) return tile_of_rows<ByteCodes<Range::byte>, halves>(rows);
  if (weights.bits > 4) return tile_of_rows<ByteCodes<Range::below_64>, halves>(rows);
  return tile_of_rows<ByteCodes<Range::below_16>, halves>(rows);
}

// Tiles that unpack codes themselves.
template <int halves>
RunQuantizedTile tile_of_packed(const QuantizedWeights& weights, int64_t rows) {
#if defined(QUIRE_VECTORS)
  if (weights.has_book) return tile_of_rows<BookCodes, halves>(rows);
  if (weights.bits == 2) return tile_of_rows<PackedCodes<2>, halves>(rows);
  if (weights.bits == 3) return tile_of_rows<PackedCodes<3>, halves>(rows);
  if (weights.bits == 4) return tile_of_rows<PackedCodes<4>, halves>(rows);
  if (weights.bits == 5) return tile_of_rows<PackedCodes<5>, halves>(rows);
  if (weights.bits == 6) return tile_of_rows<PackedCodes<6>, halves>(rows);
#endif
  return tile_of_bytes<halves>(weights, rows);
}

RunQuantizedTile quantized_tile_of(const QuantizedWeights& weights, bool packed, int64_t rows) {
  if (has_halves(weights))
    return packed ? tile_of_packed<2>(weights, rows) : tile_of_bytes<2>(weights, rows);
  return packed ? tile_of_packed<1>(weights, rows) : tile_of_bytes<1>(weights, rows);
}

// Tiles that unpack for themselves cost less than unpacking to memory when they are few.
constexpr int64_t max_packed_tiles = F32::lanes >= 8 ? 2 : 0;

static_assert(block_groups<QuantizedFormat> <= max_tile_groups, "a tile takes a block");

// Multiplies a block of one panel at a time, in integers.
class IntegerBlocks {
 public:
  using Format = QuantizedFormat;

  explicit IntegerBlocks(const QuantizedWeights& weights) : weights_(weights) {
    constexpr int64_t lines = 2 * block_groups<Format> * panel_width;
    scales_ = static_cast<float*>(
        scratch(Slot::weights, block_groups<Format> * record_codes + 2 * lines * sizeof(float)));
    offsets_ = scales_ + lines;
    codes_ = reinterpret_cast<uint8_t*>(offsets_ + lines);
    for (int i = 0; i < 16; ++i) book_[i] = static_cast<uint8_t>(weights.book_codes[i] + 128);
  }

  static Format format(const QuantizedWeights& weights) {
    const int32_t zero = weights.has_book ? 128 : weights.zero;
    return {zero - (uses_bytes(weights) ? byte_zero : 0), has_halves(weights)};
  }

  // Add block `index` of a panel to sums [row][32 outputs]; `next` is the panel of the next call.
  void multiply(const Activations<Format>& activations, const BlockPlace& place, float* sums) {
    const Tiles& tiles = activations.tiles();
    const RecordSpan span{place.panel, place.index * block_groups<Format>,
                          activations.groups_of(place.index)};
    const bool packed = tiles.count <= max_packed_tiles;
    QuantizedTile tile{};
    tile.codes = packed ? packed_codes(span) : unpacked_codes(span);
    tile.book = book_;
    tile.groups = span.records;
    tile.first = place.index == 0;
    const float step = weights_.has_book ? weights_.book_step : 1.0f;
    read_scales(weights_, span, weights_.scales_begin(), step, scales_);
    tile.scales = scales_;
    if (weights_.has_offsets) {
      read_scales(weights_, span, weights_.offsets_begin(), 1.0f, offsets_);
      tile.offsets = offsets_;
    }
    // Each tile asks for a share of the block that comes next: memory is then busy all the time.
    const int64_t next_record = place.next_index * block_groups<Format>;
    ask_for_scales(place.next, next_record);
    const char* next = place.next + next_record * weights_.record_bytes();
    const char* const next_end = next + span.records * weights_.record_bytes();
    tile.ahead_bytes = ceil_div(weights_.record_bytes() / 64, tiles.count) * 64;
    for (int64_t i = 0; i < tiles.count; ++i) {
      const int64_t begin = tiles.start(i), rows = tiles.start(i + 1) - begin;
      tile.activations = reinterpret_cast<const ActivationGroup*>(activations.at(place.index, i));
      tile.out = sums + begin * panel_width;
      tile.ahead = next < next_end ? next : nullptr;
      quantized_tile_of(weights_, packed, rows)(tile);
      next += span.records * tile.ahead_bytes;
    }
  }

 private:
  // The scales and offsets of the block at `record`.
  void ask_for_scales(const char* panel, int64_t record) const {
    ask_for_lines(panel + weights_.scales_begin(), true, record);
    if (weights_.has_offsets)
      ask_for_lines(panel + weights_.offsets_begin(), weights_.scale_form != ScaleForm::nibbles,
                    record);
  }

  // One of the two: what groups have, if they have any of their own, and what super groups have.
  void ask_for_lines(const char* lines, bool of_groups, int64_t record) const {
    const bool direct = weights_.scale_form == ScaleForm::direct;
    if (of_groups) {
      ask(lines, direct ? weights_.scale_line_bytes() : panel_width, weights_.group_size, record);
      lines += weights_.group_lines_bytes();
    }
    if (!direct) ask(lines, weights_.scale_line_bytes(), QuantizedWeights::super_inputs, record);
  }

  // Lines that stand for `inputs` each.
  static void ask(const char* lines, int64_t line_bytes, int64_t inputs, int64_t record) {
    lines += record * record_inputs / inputs * line_bytes;
    const int64_t count = ceil_div(block_groups<Format> * record_inputs, inputs);
    for (int64_t i = 0; i < count * line_bytes; i += 64) __builtin_prefetch(lines + i, 0, 2);
  }

  const uint8_t* packed_codes(const RecordSpan& span) const {
    return reinterpret_cast<const uint8_t*>(span.panel + span.first * weights_.record_bytes());
  }

  const uint8_t* unpacked_codes(const RecordSpan& span) {
    if (weights_.bits == 8) return packed_codes(span);
    read_codes(weights_, span, codes_);
    if (weights_.has_book)
      for (int64_t i = 0; i < span.records; ++i) look_up_codes(book_, codes_ + i * record_codes);
    return codes_;
  }

  const QuantizedWeights& weights_;
  uint8_t* codes_;
  float *scales_, *offsets_;
  uint8_t book_[16];
};

#if defined(QUIRE_MATRIX_TILES)
using ManyRowsBlocks = MatrixBlocks;
bool are_many(const QuantizedWeights& weights, int64_t rows) {
  return rows >= matrix_rows().quantized && fits_signed_bytes(weights);
}
#else
using ManyRowsBlocks = IntegerBlocks;
bool are_many(const QuantizedWeights&, int64_t) { return false; }
#endif

// The same with exact activations: dequantizes the block and multiplies in float.
class FloatBlocks {
 public:
  using Format = FloatFormat<float>;

  explicit FloatBlocks(const QuantizedWeights& weights) : weights_(weights) {
    constexpr int64_t lines = 4 * block_records * panel_width;
    values_ = static_cast<float*>(scratch(
        Slot::weights, block_records * record_codes * (1 + sizeof(float)) + lines * sizeof(float)));
    scales_ = values_ + block_records * record_codes;
    codes_ = reinterpret_cast<uint8_t*>(scales_ + lines);
  }

  static Format format(const QuantizedWeights&) { return {}; }

  void multiply(const Activations<Format>& activations, const BlockPlace& place, float* sums) {
    const auto [panel, index, next, next_index] = place;
    const Tiles& tiles = activations.tiles();
    const int64_t groups = activations.groups_of(index);
    dequantize(weights_, {panel, index * block_records, groups * group_words / record_inputs},
               codes_, scales_, values_);
    for (int64_t i = 0; i < tiles.count; ++i) {
      Tile<Format> tile{};
      tile.activations = activations.at(index, i);
      tile.weights = values_;
      tile.groups = groups;
      tile.first = index == 0;
      tile.out = sums + tiles.start(i) * panel_width;
      tile.prefetch = next;
      tile_of<Format>(tiles.start(i + 1) - tiles.start(i))(tile);
    }
  }

 private:
  static constexpr int64_t block_records = block_groups<Format> * group_words / record_inputs;

  const QuantizedWeights& weights_;
  float *values_, *scales_;
  uint8_t* codes_;
};

// How many panels make a chunk: a 64th of the weights, so that threads end together, but not so few
// bytes that the wait for the first of them counts. All panels when the work is small, because
// waking another thread costs some microseconds.
int64_t panels_of_chunk(const QuantizedWeights& weights, int64_t rows) {
  if (weights.bytes() * (1 + rows / 4) < (1 << 19)) return weights.num_panels();
  const int64_t bytes =
      larger<int64_t>(64 << 10, smaller<int64_t>(256 << 10, weights.bytes() / 64));
  return larger<int64_t>(rows > 32 ? 4 : 1, bytes / weights.panel_bytes());
}

struct Place {
  int64_t panel, block;
};

template <class Blocks>
void multiply(const QuantizedWeights& weights, const float* x, int64_t num_rows, float* out,
              int64_t out_stride) {
  const Activations<typename Blocks::Format> activations(
      weights.in_features, weights.padded_inputs(), x, num_rows, Blocks::format(weights));
  const int64_t panels = panels_of_chunk(weights, num_rows);
  parallel_for(ceil_div(weights.num_panels(), panels), [&](int64_t chunk) {
    const int64_t begin = chunk * panels, end = smaller(begin + panels, weights.num_panels());
    const int64_t panel_sums = num_rows * panel_width;
    auto* sums = static_cast<float*>(
        scratch(Slot::partial, static_cast<size_t>((end - begin) * panel_sums) * sizeof(float)));
    Blocks blocks(weights);
    // Few rows read weights in the order of memory; many find each block of theirs in the cache
    // for several panels.
    const int64_t num_blocks = activations.num_blocks(), num_panels = end - begin;
    const bool few = num_rows <= 32;
    const auto place = [&](int64_t i) {
      return Place{few ? i / num_blocks : i % num_panels, few ? i % num_blocks : i / num_panels};
    };
    // The threads take chunks in turn: after this one, most likely, the next but the others' ones.
    const int64_t coming = panels * num_threads();
    const Place last{begin + coming < weights.num_panels() ? coming : num_panels - 1, 0};
    for (int64_t i = 0; i < num_blocks * num_panels; ++i) {
      const Place here = place(i), next = i + 1 < num_blocks * num_panels ? place(i + 1) : last;
      const auto data = [&](const Place& at) {
        return weights.data + (begin + at.panel) * weights.panel_bytes();
      };
      blocks.multiply(activations, {data(here), here.block, data(next), next.block},
                      sums + here.panel * panel_sums);
    }
    write_panels({sums, begin, end, num_rows, weights.out_features, weights.bias}, out, out_stride);
  });
}

}  // namespace

void linear_quantized(const QuantizedWeights& weights, const float* x, int64_t num_rows, float* out,
                      int64_t out_stride) {
  const int64_t passes = ceil_div(num_rows, max_rows_at_once);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t row = pass * num_rows / passes;
    const int64_t rows = (pass + 1) * num_rows / passes - row;
    const float* inputs = x + row * weights.in_features;
    if (weights.exact_activations)
      multiply<FloatBlocks>(weights, inputs, rows, out + row * out_stride, out_stride);
    else if (are_many(weights, rows))
      multiply<ManyRowsBlocks>(weights, inputs, rows, out + row * out_stride, out_stride);
    else
      multiply<IntegerBlocks>(weights, inputs, rows, out + row * out_stride, out_stride);
  }
}

}  // namespace quire::QUIRE_ISA
