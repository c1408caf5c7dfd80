// The micro-kernel of quantized linears: a few rows times one panel over one block of inputs.
//
// Each output has one accumulator, a float, which takes the inputs' groups in ascending order:
//
//   sum += (scale of weights * scale of activations) * integer dot product - exact, of one group
//   sum += offset * (scale of activations * sum of their codes)            - where there are
//   offsets
//
// A group is what has one scale of weights and one of activations: a record of 32 inputs, or
// several that are joined (activation_inputs() in include/quantized.h). Where each half of a record
// has its scale of weights, their products are added first:
//
//   sum += offset of the first half * ...
//   sum += scale of activations * (scale * dot product of one half + scale * that of the other)
//   sum += offset of the second half * ...
//
// What sums are times or over for each output, they are in the end (QuantizedWeights::row_scales).
//
// So an output's bits depend on its own row alone, whatever the rows next to it, the instance that
// computed it, or the thread.
#pragma once

#include "cpu/quantized_codes.h"
#include "cpu/small_float_inputs.h"
#include "simd/words.h"

namespace quire::QUIRE_ISA {

// 32 activations of one row in 8 bits. A half is 16 inputs; where groups are 32 or more the first
// half's fields stand for all; of records that are joined, those of the first.
struct ActivationGroup {
  int8_t codes[32];
  float scale[2];
  int32_t start[2];  // minus the zero of the weights' codes times the sum of these
  float sum[2];      // scale times the sum of codes
  int32_t unused[2];
};
static_assert(sizeof(ActivationGroup) == 64, "a line of Activations");

enum class Grouping { halves, records, joined };

inline Grouping grouping_of(const QuantizedWeights& weights) {
  if (weights.group_size < QuantizedWeights::record_inputs) return Grouping::halves;
  return weights.activation_inputs() > QuantizedWeights::record_inputs ? Grouping::joined
                                                                       : Grouping::records;
}

// What Activations packs for quantized weights.
struct QuantizedFormat {
  using Word = uint32_t;
  static constexpr int word_inputs = 2;
  static constexpr int tile_rows = dot_rows;
  static constexpr int64_t lines_worth_a_thread = 512;  // to pack

  int32_t zero;
  bool halves;
  bool rounded;  // inputs are codes already
  ActivationScheme scheme;
  int64_t groups_together;  // records that are joined
  int64_t parts;            // rows that are packed of each

  QuantizedFormat(const QuantizedWeights& weights, int32_t zero)
      : zero(zero),
        halves(grouping_of(weights) == Grouping::halves),
        rounded(weights.activations.rounds_rows()),
        scheme(weights.activations),
        groups_together(weights.activation_inputs() / QuantizedWeights::record_inputs),
        parts(scheme.parts()) {}

  // Whether the halves of a record are rounded each by itself.
  bool scales_halves() const { return halves && scheme.codes == ActivationCodes::e2m1; }

  // Codes of the inputs, or with part 1 of what those leave over.
  void fill(const float* x, int64_t n, const Lines<Word>& lines, int64_t part) const {
    if (scheme.codes == ActivationCodes::e2m1) return fill_e2m1(x, n, *lines.first);
    alignas(64) float values[QuantizedWeights::max_activation_inputs];
    const F32 nothing = quire::QUIRE_ISA::zero(), infinity = set1(__builtin_inff());
    const F32 one = set1(1.0f);
    F32 highest = nothing, bad = nothing;
    for (int64_t i = 0; i < 32 * lines.count; i += F32::lanes) {
      const F32 part = n > i ? load_tail(x + i, n - i) : nothing;
      bad = bad + part * nothing;  // NaN where x is infinite or NaN
      const F32 finite = select(less(abs(part), infinity), part, nothing);
      highest = max(abs(finite), highest);
      store(values + i, finite);
    }
    float most = max(highest);
    if (part) most = leave_rest(values, 32 * lines.count, most);
    const bool silent = most < 1e-30f;  // 127 / most would be infinite
    const F32 inverse = set1(rounded ? 1.0f : silent ? 0.0f : 127.0f / most);
    float scale = rounded ? 1.0f : silent ? 0.0f : most / 127.0f;
    if (bits(less(bad, one)) != all_lanes) scale += sum(bad);
    float sums[2] = {};
    for (int64_t i = lines.count - 1; i >= 0; --i) {  // the first has the sums of all in the end
      // In place: a copy would wait until the parts of what it loads at once are stored.
      auto& group = reinterpret_cast<ActivationGroup&>(lines.first[i * lines.stride]);
      add_codes(values + 32 * i, inverse, group.codes, sums);
      for (int half = 0; half < 2; ++half) {
        group.scale[half] = scale;
        group.start[half] = -zero * static_cast<int32_t>(sums[half]);
        group.sum[half] = scale * sums[half];
      }
    }
  }

  // A record of E2M1: halves have factors of their own where the weights' have.
  void fill_e2m1(const float* x, int64_t n, Word& line) const {
    alignas(64) float values[32];
    const F32 nothing = quire::QUIRE_ISA::zero(), infinity = set1(__builtin_inff());
    F32 highest[2] = {nothing, nothing}, bad = nothing;
    for (int64_t i = 0; i < 32; i += F32::lanes) {
      const F32 part = n > i ? load_tail(x + i, n - i) : nothing;
      bad = bad + part * nothing;
      const F32 finite = select(less(abs(part), infinity), part, nothing);
      highest[i / 16] = max(abs(finite), highest[i / 16]);
      store(values + i, finite);
    }
    float most[2] = {max(highest[0]), max(highest[1])};
    if (!halves) most[0] = most[1] = larger(most[0], most[1]);
    auto& group = reinterpret_cast<ActivationGroup&>(line);
    float sums[2] = {};
    for (int half = 0; half < 2; ++half) {
      const float factor = e2m1_factor(scheme, most[half]);
      group.scale[half] = factor * 0.5f + sum(bad);
      for (int64_t i = 16 * half; i < 16 * half + 16; i += F32::lanes) {
        const F32 part = load(values + i) / set1(factor == 0.0f ? 1.0f : factor);
        const F32 codes = factor == 0.0f ? nothing : doubled_e2m1(part);
        sums[half] += sum(codes);
        store(group.codes + i, codes);
      }
    }
    if (!halves) sums[0] += sums[1];
    for (int half = 0; half < 2; ++half) {
      group.start[half] = -zero * static_cast<int32_t>(sums[half]);
      group.sum[half] = group.scale[half] * sums[half];
    }
  }

 private:
  static constexpr uint32_t all_lanes = (1u << F32::lanes) - 1;

  // Take off what codes of the values stand for, the largest of which is `most`; return the largest
  // of what is left.
  static float leave_rest(float* values, int64_t count, float most) {
    const bool silent = most < 1e-30f;
    const F32 inverse = set1(silent ? 0.0f : 127.0f / most);
    const F32 scale = set1(silent ? 0.0f : most / 127.0f);
    F32 highest = quire::QUIRE_ISA::zero();
    for (int64_t i = 0; i < count; i += F32::lanes) {
      const F32 value = load(values + i), rest = value - round(value * inverse) * scale;
      highest = max(abs(rest), highest);
      store(values + i, rest);
    }
    return max(highest);
  }

  // 32 codes. Their sum, a whole number, is added to sums[0]; those of halves to each.
  void add_codes(const float* values, F32 inverse, int8_t* codes, float* sums) const {
    constexpr int vectors = 32 / F32::lanes;
    F32 half_sums[2] = {quire::QUIRE_ISA::zero(), quire::QUIRE_ISA::zero()};
    for (int v = 0; v < vectors; ++v) {
      const F32 rounded = round(load(values + v * F32::lanes) * inverse);
      half_sums[2 * v / vectors] = half_sums[2 * v / vectors] + rounded;
      store(codes + v * F32::lanes, rounded);
    }
    if (!halves) {
      sums[0] += sum(half_sums[0] + half_sums[1]);
      return;
    }
    sums[0] += sum(half_sums[0]);
    sums[1] += sum(half_sums[1]);
  }
};

// Groups of a call, at most.
constexpr int64_t max_tile_groups = 16;

// How far it is from one record to the next, in bytes: to its codes, and to the lines of its
// scales; and what comes on top where a unit ends.
struct RecordSteps {
  int64_t codes, lines;
  int64_t unit_codes, unit_lines;
  int64_t unit_records;
};

// One call of a tile.
struct QuantizedTile {
  const ActivationGroup* activations;  // [group][row]
  const uint8_t* codes;                // of the first record, as the tile's Codes take them
  const uint8_t* book;                 // what BookCodes look up, or null
  const VectorTable* vectors;          // what VectorCodes look up, or null
  int32_t zero;                        // of their codes
  // Scales of the first record as Scales take them, [half][32 outputs], and how many bytes further
  // its offsets are; 0 where there are none.
  const char* lines;
  int64_t offsets_begin;
  // Where they are bytes, what these are multiplied by: [256 inputs][32 outputs].
  const float* super_scales;
  const float* super_offsets;
  float scale_step;  // what scales of a byte are times
  RecordSteps steps;
  int64_t records_left;  // of the first record's unit
  int64_t groups;        // records
  int64_t joined;        // that are one group; 1 where none are
  bool scaled_halves;    // of records' activations, each with its own
  bool first;            // whether this is the first block: `out` is written, else added to
  float* out;            // [row][32 outputs]
  // What a later tile will want, to ask memory for some bytes with each group; or null.
  const char* ahead;
  int64_t ahead_bytes;
};

using RunQuantizedTile = void (*)(const QuantizedTile&);

// Where a tile finds scales: as floats, unpacked for it, or as they lie in the panel; of two levels
// half bytes are unpacked to bytes.
enum class ScalePlace { unpacked, floats, halves, two_levels, e4m3, powers };

// Scales and offsets of a record, of type T.
template <class T>
struct DirectScales {
  const char* lines;
  int64_t offsets_begin;
  explicit DirectScales(const QuantizedTile& tile)
      : lines(tile.lines), offsets_begin(tile.offsets_begin) {}
  F32 scale(int64_t at, int64_t) const { return load(reinterpret_cast<const T*>(lines) + at); }
  F32 offset(int64_t at, int64_t) const {
    return load(reinterpret_cast<const T*>(lines + offsets_begin) + at);
  }
};

// E4M3 of a record times a number of all.
struct E4m3Scales : DirectScales<E4M3> {
  const F32 step;
  explicit E4m3Scales(const QuantizedTile& tile)
      : DirectScales(tile), step(set1(tile.scale_step * e4m3_unit)) {}
  F32 scale(int64_t at, int64_t super) const { return DirectScales::scale(at, super) * step; }
};

// Powers of two of a record times a number of all.
struct PowerScales : DirectScales<uint8_t> {
  const F32 step;
  explicit PowerScales(const QuantizedTile& tile)
      : DirectScales(tile), step(set1(tile.scale_step)) {}
  F32 scale(int64_t at, int64_t) const {
    return load_powers(reinterpret_cast<const uint8_t*>(lines) + at) * step;
  }
  F32 offset(int64_t, int64_t) const { return zero(); }
};

// Bytes of a record times the numbers of 256 inputs.
struct ScalesOfTwoLevels : DirectScales<int8_t> {
  const float *supers, *super_offsets;
  explicit ScalesOfTwoLevels(const QuantizedTile& tile)
      : DirectScales(tile), supers(tile.super_scales), super_offsets(tile.super_offsets) {}
  F32 scale(int64_t at, int64_t super) const {
    return DirectScales::scale(at, super) * load(supers + super);
  }
  F32 offset(int64_t at, int64_t super) const {
    return DirectScales::offset(at, super) * load(super_offsets + super);
  }
};

// The records of a call in turn.
template <class Scales>
struct RecordWalk {
  const uint8_t* codes;
  Scales scales;
  int64_t left;  // of the unit, this one counted

  explicit RecordWalk(const QuantizedTile& tile)
      : codes(tile.codes), scales(tile), left(tile.records_left) {}
  void step(const RecordSteps& steps) {
    codes += steps.codes;
    scales.lines += steps.lines;
    if (--left > 0) return;
    left = steps.unit_records;
    codes += steps.unit_codes;
    scales.lines += steps.unit_lines;
  }
};

template <class Codes>
struct CodesOf {
  static Codes of(const QuantizedTile&) { return {}; }
};
#if defined(QUIRE_VECTORS)
template <Range range>
struct CodesOf<BookCodes<range>> {
  static BookCodes<range> of(const QuantizedTile& tile) { return {tile.book}; }
};
#endif

// Codes taken as Codes takes them, while memory is asked for what a later tile will want: a part
// with each word, because processors drop requests that come many at once.
template <class Codes>
struct AskingCodes {
  static constexpr Range range = Codes::range;
  static constexpr int64_t record_bytes = Codes::record_bytes;
  Codes codes;
  const char* ahead;
  int64_t bytes_a_word;

  Bytes load(const uint8_t* record, int word, int vector) const {
    constexpr int vectors = word_bytes / register_bytes;
    if (vector % (vectors / 2) == 0)
      __builtin_prefetch(ahead + word * bytes_a_word + vector * bytes_a_word / vectors, 0,
                         asked_cache);
    return codes.load(record, word, vector);
  }
};

// How a tile takes its codes and asks for those ahead: all of a group's at once, or word by word.
// begin_group(tile, record) comes before each record.
template <class Codes>
struct CodeReader {
  Codes codes;
  const char* ahead;
  CodeReader(const QuantizedTile& tile, bool asks)
      : codes(CodesOf<Codes>::of(tile)), ahead(asks ? tile.ahead : nullptr) {}
  void begin_group(const QuantizedTile& tile, const uint8_t*) {
    if (!ahead) return;
    for (int64_t i = 0; i < tile.ahead_bytes; i += 64) __builtin_prefetch(ahead + i, 0, 2);
    ahead += tile.ahead_bytes;
  }
  void end_group(const QuantizedTile&) {}
};
template <class Codes>
struct CodeReader<AskingCodes<Codes>> {
  AskingCodes<Codes> codes;
  CodeReader(const QuantizedTile& tile, bool)
      : codes{CodesOf<Codes>::of(tile), tile.ahead, tile.ahead_bytes / 8} {}
  void begin_group(const QuantizedTile&, const uint8_t*) {}
  void end_group(const QuantizedTile& tile) {
    codes.ahead += tile.ahead_bytes;
    __builtin_prefetch(codes.ahead - 1, 0, asked_cache);  // bytes that words leave over
  }
};

template <class Codes, Grouping grouping, class Scales, int rows>
void run_quantized_tile(const QuantizedTile& tile) {
  constexpr bool joins = grouping == Grouping::joined;
  constexpr int halves = grouping == Grouping::halves ? 2 : 1;
  constexpr int vectors = dot_vectors<rows>, width = vectors * F32::lanes;
  constexpr int words = 8 / halves, panel = QuantizedWeights::panel_width;
  alignas(64)
      int8_t wide[widens<Codes::range> ? max_tile_groups * rows * sizeof(ActivationGroup) : 1];
  if constexpr (widens<Codes::range>)
    for (int64_t i = 0; i < tile.groups * rows; ++i)
      widen(tile.activations[i].codes, wide + i * sizeof(ActivationGroup));
  for (int part = 0; part < panel; part += width) {
    F32 sums[rows][vectors];
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v)
        sums[m][v] = tile.first ? zero() : load(tile.out + m * panel + part + v * F32::lanes);
    const ActivationGroup* a = tile.activations;
    const int8_t* inputs = widens<Codes::range> ? wide : a->codes;
    RecordWalk<Scales> record(tile);
    CodeReader<Codes> reader(tile, part == 0);
    const auto end_record = [&] {
      inputs += rows * sizeof(*a);
      record.step(tile.steps);
      reader.end_group(tile);
    };
    int64_t records = 1;
    for (int64_t group = 0; group < tile.groups; group += records) {
      reader.begin_group(tile, record.codes);
      if constexpr (joins) records = smaller(tile.joined, tile.groups - group);
      const Scales scales = record.scales;  // of the first of those that are joined
      F32 products[rows][vectors];          // of half a record, until those of the other are added
#pragma GCC unroll 2
      for (int half = 0; half < halves; ++half) {
        I32 dots[rows][vectors];
#pragma GCC unroll 16
        for (int m = 0; m < rows; ++m)
#pragma GCC unroll 4
          for (int v = 0; v < vectors; ++v) dots[m][v] = set1(a[m].start[half]);
        dot_words<Codes, rows, vectors, words>(reader.codes, record.codes, half * words,
                                               part / F32::lanes, inputs + half * 16, sizeof(*a),
                                               dots);
        for (int64_t i = 1; joins && i < records; ++i) {
          end_record();
          reader.begin_group(tile, record.codes);
          dot_words<Codes, rows, vectors, words>(reader.codes, record.codes, 0, part / F32::lanes,
                                                 inputs, sizeof(*a), dots);
        }
        const int64_t super = group / QuantizedWeights::super_records * panel + part;
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
          const int64_t at = half * panel + part + v * F32::lanes,
                        super_at = super + v * F32::lanes;
          const F32 scale = scales.scale(at, super_at);
#pragma GCC unroll 16
          for (int m = 0; m < rows; ++m) {
            const F32 dot = to_float(dots[m][v]), own = set1(a[m].scale[half]);
            if (halves == 1 || tile.scaled_halves)
              sums[m][v] = fma(dot, scale * own, sums[m][v]);
            else if (half == 0)
              products[m][v] = dot * scale;
            else
              sums[m][v] = fma(fma(dot, scale, products[m][v]), own, sums[m][v]);
          }
          if (!tile.offsets_begin) continue;
          const F32 offset = scales.offset(at, super_at);
#pragma GCC unroll 16
          for (int m = 0; m < rows; ++m) sums[m][v] = fma(offset, set1(a[m].sum[half]), sums[m][v]);
        }
      }
      end_record();
      a += rows * records;
    }
#pragma GCC unroll 16
    for (int m = 0; m < rows; ++m)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v)
        store(tile.out + m * panel + part + v * F32::lanes, sums[m][v]);
  }
}

}  // namespace quire::QUIRE_ISA
