// Records of quantized weights made ready for a kernel: bytes with float scales, or floats.
#pragma once

#include "cpu/quantized_codes.h"
#include "cpu/quantized_lattice.h"
#include "cpu/quantized_vectors.h"
#include "simd/e4m3.h"

namespace quire::QUIRE_ISA {

// Where `records` records of a panel begin, from record `first` on.
struct RecordSpan {
  const char* panel;
  int64_t first;
  int64_t records;
};

// Where the records of a panel lie, in bytes from its begin. Made once for many: that takes
// divisions.
class PanelMap {
 public:
  explicit PanelMap(const QuantizedWeights& weights)
      : header_bytes(weights.header_bytes()),
        record_bytes(weights.record_bytes()),
        codes_begin(weights.codes_begin()),
        unit_bytes(weights.unit_bytes()),
        unit_records(weights.unit_records()),
        offsets_begin(weights.has_corrections() ? weights.offsets_begin() : 0),
        supers_begin(weights.group_lines_bytes()),
        super_offsets_begin(weights.super_offsets_begin()) {
    while ((int64_t{1} << shift_) < unit_records) ++shift_;
    if (int64_t{1} << shift_ != unit_records) shift_ = -1;
  }

  const int64_t header_bytes, record_bytes, codes_begin, unit_bytes, unit_records;
  // Of a unit; of offsets or zeros 0 where there are none.
  const int64_t offsets_begin, supers_begin, super_offsets_begin;

  int64_t unit_of(int64_t record) const {
    return shift_ >= 0 ? record >> shift_ : record / unit_records;
  }
  int64_t unit_begin(int64_t record) const { return header_bytes + unit_of(record) * unit_bytes; }
  // Place in its unit.
  int64_t number(int64_t record) const { return record - unit_of(record) * unit_records; }
  // From where on a panel holds what stands for that record and those after it.
  int64_t begin_of(int64_t record) const {
    return codes_of(record) - (number(record) == 0 ? codes_begin : 0);
  }
  int64_t codes_of(int64_t record) const {
    return unit_begin(record) + codes_begin + number(record) * record_bytes;
  }

 private:
  int shift_ = 0;
};

// A block of one panel, and the block that comes after it.
struct BlockPlace {
  const char* panel;
  int64_t index;
  const char* next;
  int64_t next_index;
};

// A line of scales or offsets as float, times `factor`.
template <class T>
inline void read_line(const T* line, F32 factor, float* out) {
  for (int64_t i = 0; i < QuantizedWeights::panel_width; i += F32::lanes)
    store(out + i, load(line + i) * factor);
}

// A line times or over what a panel's header has for each output.
inline void apply_row_scales(RowForm form, const char* header, float* out) {
  const auto* numbers = reinterpret_cast<const float*>(header);
  for (int64_t i = 0; i < QuantizedWeights::panel_width; i += F32::lanes) {
    const F32 line = load(out + i), number = load(numbers + i);
    store(out + i, form == RowForm::times ? line * number : line / number);
  }
}

// A line of one level.
inline void read_direct(const QuantizedWeights& weights, const char* line, F32 factor, float* out) {
  if (weights.scale_form == ScaleForm::e4m3) {
    read_line(reinterpret_cast<const E4M3*>(line), factor * set1(e4m3_unit), out);
  } else if (weights.scale_form == ScaleForm::e8m0) {
    for (int64_t i = 0; i < QuantizedWeights::panel_width; ++i) {
      const uint32_t exponent = static_cast<uint8_t>(line[i]);
      const uint32_t bits = exponent ? exponent << 23 : 1u << 22;  // 2 ** -127 is not normal
      std::memcpy(out + i, &bits, sizeof(bits));
    }
    read_line(out, factor, out);
  } else if (weights.scale_dtype == DType::float32) {
    read_line(reinterpret_cast<const float*>(line), factor, out);
  } else {
    read_line(reinterpret_cast<const F16*>(line), factor, out);
  }
}

// A line of two levels: int8 of the group, or a half byte from bit `shift` on, times the super
// scale.
inline void read_two_levels(const QuantizedWeights& weights, const int8_t* group,
                            const float* supers, int shift, float* out) {
  constexpr int64_t panel = QuantizedWeights::panel_width;
  int8_t halves[panel];
  if (weights.scale_form == ScaleForm::nibbles) {
    for (int i = 0; i < panel; ++i)
      halves[i] = static_cast<int8_t>(static_cast<uint8_t>(group[i]) >> shift & 15);
    group = halves;
  }
  for (int64_t i = 0; i < panel; i += F32::lanes)
    store(out + i, load(group + i) * load(supers + i));
}

// Lines of nested scales of a panel, its groups in ascending order: a multiplication and a sum.
class NestedLines {
 public:
  NestedLines(const QuantizedWeights& weights, const char* header)
      : nested_(weights.nested), first_(reinterpret_cast<const int32_t*>(header)) {}

  // The line of group `group`, times `factor`.
  void read(const char* line, int32_t group, F32 factor, float* out) {
    for (int i = 0; i < panel; ++i) out[i] = nested_.table[static_cast<uint8_t>(line[i])];
    if (group >= end_) find_runs(group);
    for (int i = 0; i < panel; i += F32::lanes)
      store(out + i, (load(out + i) * load(numbers_ + i) + load(offsets_ + i)) * factor);
  }

 private:
  static constexpr int panel = QuantizedWeights::panel_width;

  // The rows' runs, and the first group at which one of them has another.
  void find_runs(int32_t group) {
    const int32_t run = 1 << nested_.run_shift;
    int32_t left = run;
    for (int i = 0; i < panel; ++i) {
      const int32_t place = first_[i] + group;
      left = smaller(left, run - (place & (run - 1)));
      const NestedScales::Run& found = nested_.runs[place >> nested_.run_shift];
      numbers_[i] = found.number;
      offsets_[i] = found.offset;
    }
    end_ = group + left;
  }

  const NestedScales& nested_;
  const int32_t* first_;
  int32_t end_ = 0;
  alignas(64) float numbers_[panel], offsets_[panel];
};

// Goes through the groups of a span, record by record.
class GroupWalk {
 public:
  GroupWalk(const QuantizedWeights& weights, const PanelMap& map, const RecordSpan& span)
      : unit_inputs_(weights.unit_inputs()),
        unit_bytes_(map.unit_bytes),
        group_size_(weights.group_size),
        unit_(span.panel + map.unit_begin(span.first)),
        input_(map.number(span.first) * QuantizedWeights::record_inputs),
        group_(input_ / group_size_) {}

  const char* unit() const { return unit_; }
  int64_t group() const { return group_; }
  bool begins_unit() const { return input_ == 0; }
  void step(int64_t inputs) {
    input_ += inputs;
    if (input_ == (group_ + 1) * group_size_) ++group_;
    if (input_ < unit_inputs_) return;
    input_ = group_ = 0;
    unit_ += unit_bytes_;
  }

 private:
  int64_t unit_inputs_, unit_bytes_, group_size_;
  const char* unit_;
  int64_t input_, group_;  // of the unit
};

// The scales of vectors, as read_scales has them.
template <VectorForm form>
inline void read_odd_scales(const QuantizedWeights& weights, const PanelMap& map,
                            const RecordSpan& span, float factor, float* out) {
  constexpr int64_t panel = QuantizedWeights::panel_width;
  constexpr int halves = vector_layout(form).group_size < QuantizedWeights::record_inputs ? 2 : 1;
  const F32 factors = set1(factor * weights.vector_step);
  const auto bytes_at = [&](int64_t at) {
    return reinterpret_cast<const uint8_t*>(span.panel + at);
  };
  alignas(64) float supers[panel];
  alignas(64) int8_t line[panel];
  for (int64_t i = span.first; i < span.first + span.records; ++i) {
    const int64_t unit = map.unit_begin(i), number = map.number(i);
    if (i == span.first || number == 0)
      read_line(reinterpret_cast<const F16*>(span.panel + unit + map.supers_begin), factors,
                supers);
    for (int half = 0; half < halves; ++half, out += panel) {
      read_odd_line<form>(bytes_at(unit), bytes_at(map.codes_of(i)), static_cast<int>(number), half,
                          line);
      for (int64_t n = 0; n < panel; n += F32::lanes)
        store(out + n, load(line + n) * load(supers + n));
    }
  }
}

enum class ScaleKind { scale, offset };

// Scales or offsets of a span times `factor`, [record][half][32 outputs]; one half where groups are
// whole records.
inline void read_scales(const QuantizedWeights& weights, const PanelMap& map,
                        const RecordSpan& span, ScaleKind kind, float factor, float* out) {
  if (weights.scale_form == ScaleForm::odd)
    return with_form(weights.vectors, [&](auto constant) {
      read_odd_scales<decltype(constant)::form>(weights, map, span, factor, out);
    });
  constexpr int64_t panel = QuantizedWeights::panel_width;
  const int halves = weights.group_size < QuantizedWeights::record_inputs ? 2 : 1;
  const bool scales = kind == ScaleKind::scale;
  const bool high = !scales && weights.scale_form == ScaleForm::nibbles;
  const int64_t begin = scales || high ? 0 : map.offsets_begin;
  const int64_t super_begin = scales ? map.supers_begin : map.super_offsets_begin;
  const F32 factors = set1(factor);
  alignas(64) float supers[panel];
  NestedLines nested(weights, span.panel);
  GroupWalk walk(weights, map, span);
  for (int64_t i = 0; i < span.records * halves; ++i, out += panel) {
    const char* line = walk.unit() + begin + walk.group() * weights.group_line_bytes();
    if (weights.scale_form == ScaleForm::nested) {
      const int64_t input = (span.first * halves + i) * QuantizedWeights::record_inputs / halves;
      nested.read(line, static_cast<int32_t>(input / weights.group_size), factors, out);
    } else if (!weights.has_two_levels()) {
      read_direct(weights, line, factors, out);
      if (weights.row_scales != RowForm::none)
        apply_row_scales(weights.row_scales, span.panel, out);
    } else {
      if (i == 0 || walk.begins_unit())
        read_line(reinterpret_cast<const F16*>(walk.unit() + super_begin), factors, supers);
      read_two_levels(weights, reinterpret_cast<const int8_t*>(line), supers, high ? 4 : 0, out);
    }
    walk.step(QuantizedWeights::record_inputs / halves);
  }
}

inline void read_scales(const QuantizedWeights& weights, const RecordSpan& span, ScaleKind kind,
                        float factor, float* out) {
  read_scales(weights, PanelMap(weights), span, kind, factor, out);
}

// The codes of 0 of a span's groups, where each has its own: as read_scales has its lines.
inline void read_zeros(const QuantizedWeights& weights, const RecordSpan& span, float* out) {
  constexpr int64_t panel = QuantizedWeights::panel_width;
  const int halves = weights.group_size < QuantizedWeights::record_inputs ? 2 : 1;
  const PanelMap map(weights);
  GroupWalk walk(weights, map, span);
  for (int64_t i = 0; i < span.records * halves; ++i, out += panel) {
    const char* line = walk.unit() + map.offsets_begin + walk.group() * weights.zero_line_bytes();
    if (weights.zeros == ZeroForm::halves)
      read_line(reinterpret_cast<const F16*>(line), set1(1.0f), out);
    else
      for (int64_t n = 0; n < panel; ++n)
        out[n] = static_cast<float>(static_cast<uint8_t>(line[n]));
    walk.step(QuantizedWeights::record_inputs / halves);
  }
}

// What the sums of a span's activations are multiplied by: offsets, or zeros times `scales`.
inline void read_corrections(const QuantizedWeights& weights, const RecordSpan& span,
                             const float* scales, float* out) {
  if (weights.has_offsets) return read_scales(weights, span, ScaleKind::offset, 1.0f, out);
  read_zeros(weights, span, out);
  const int halves = weights.group_size < QuantizedWeights::record_inputs ? 2 : 1;
  const int64_t count = span.records * halves * QuantizedWeights::panel_width;
  for (int64_t i = 0; i < count; i += F32::lanes)
    store(out + i, zero() - load(out + i) * load(scales + i));
}

// Codes of a span, a byte each, as stored (before `zero` and the book).
inline void read_codes(const QuantizedWeights& weights, const PanelMap& map, const RecordSpan& span,
                       uint8_t* out) {
  const auto record_at = [&](int64_t i) {
    return reinterpret_cast<const uint8_t*>(span.panel + map.codes_of(span.first + i));
  };
  if (weights.vectors == VectorForm::e8p) {
    for (int64_t i = 0; i < span.records; ++i)
      unpack_lattice(weights, record_at(i), out + i * record_codes);
    return;
  }
  if (weights.has_vectors()) return unpack_vectors(weights, span.records, record_at, out);
  for (int64_t i = 0; i < span.records; ++i)
    unpack_record(weights.bits, record_at(i), out + i * record_codes);
}

// Scales of a span, and the lines that go with them: offsets or zeros.
struct SpanLines {
  float *scales, *offsets;
  SpanLines(const QuantizedWeights& weights, const RecordSpan& span, float* scales, float* offsets)
      : scales(scales), offsets(offsets) {
    read_scales(weights, span, ScaleKind::scale, 1.0f, scales);
    if (weights.has_offsets) read_scales(weights, span, ScaleKind::offset, 1.0f, offsets);
    if (weights.zeros != ZeroForm::common) read_zeros(weights, span, offsets);
  }
};

// The values of a span in float, [record][32 inputs][32 outputs]. values_of(place in the lines)
// returns what makes values of a register of codes: those of input i of its 4.
template <class ValuesOf>
inline void write_values(const RecordSpan& span, int halves, const uint8_t* __restrict codes,
                         const ValuesOf& values_of, float* __restrict out) {
  constexpr int64_t panel = QuantizedWeights::panel_width;
  const int64_t words = 8 / halves;
  for (int64_t line = 0; line < span.records * halves; ++line) {
    for (int64_t n = 0; n < panel; n += F32::lanes) {
      const auto value = values_of(line * panel + n);
      for (int64_t word = line * words; word < (line + 1) * words; ++word) {
        const uint8_t* bytes = codes + word * word_bytes + 4 * n;
        const Bytes vector = load_bytes(bytes);
        for (int i = 0; i < 4; ++i)
          store(out + (4 * word + i) * panel + n, value(vector, bytes, i));
      }
    }
  }
}

inline void dequantize(const QuantizedWeights& weights, const RecordSpan& span, uint8_t* codes,
                       float* scales, float* out) {
  const int halves = weights.group_size < QuantizedWeights::record_inputs ? 2 : 1;
  float* offsets = scales + span.records * halves * QuantizedWeights::panel_width;
  read_codes(weights, PanelMap(weights), span, codes);
  const SpanLines lines(weights, span, scales, offsets);
  const auto write = [&](const auto& values_of) {
    write_values(span, halves, codes, values_of, out);
  };
  if (weights.has_book) {
    write([&](int64_t at) {
      return [scale = load(scales + at), book = weights.book](Bytes, const uint8_t* bytes, int i) {
        alignas(64) float looked_up[F32::lanes];
        for (int lane = 0; lane < F32::lanes; ++lane) looked_up[lane] = book[bytes[4 * lane + i]];
        return load(looked_up) * scale;
      };
    });
  } else if (weights.float_codes) {
    write([&](int64_t at) {
      return [scale = load(scales + at)](Bytes vector, const uint8_t*, int i) {
        return E4m3Numbers(vector)[i] * scale;
      };
    });
  } else if (weights.has_offsets) {
    write([&, zero = set1(static_cast<float>(weights.zero))](int64_t at) {
      return [zero, scale = load(scales + at), offset = load(offsets + at)](Bytes vector,
                                                                            const uint8_t*, int i) {
        return (to_float(byte_of(vector, i)) - zero) * scale + offset;
      };
    });
  } else {
    const bool common = weights.zeros == ZeroForm::common;
    write([&, shared = set1(static_cast<float>(weights.zero))](int64_t at) {
      return [zero = common ? shared : load(offsets + at), scale = load(scales + at)](
                 Bytes vector, const uint8_t*, int i) {
        return (to_float(byte_of(vector, i)) - zero) * scale;
      };
    });
  }
}

// The values of one output of one record, as dequantize() has them: 32 inputs.
inline void dequantize_row(const QuantizedWeights& weights, const RecordSpan& span, int64_t output,
                           uint8_t* codes, float* out) {
  constexpr int64_t panel = QuantizedWeights::panel_width;
  alignas(64) float scales[2 * panel], offsets[2 * panel];
  const int halves = weights.group_size < QuantizedWeights::record_inputs ? 2 : 1;
  read_codes(weights, PanelMap(weights), span, codes);
  const SpanLines lines(weights, span, scales, offsets);
  for (int64_t k = 0; k < QuantizedWeights::record_inputs; ++k) {
    const int code = codes[k / 4 * 4 * panel + 4 * output + k % 4];
    const int64_t at = k * halves / QuantizedWeights::record_inputs * panel + output;
    float value = static_cast<float>(code - weights.zero);
    if (weights.has_book) value = weights.book[code];
    if (weights.float_codes) value = e4m3_number(code);
    if (weights.zeros != ZeroForm::common) value = static_cast<float>(code) - lines.offsets[at];
    out[k] = value * lines.scales[at] + (weights.has_offsets ? lines.offsets[at] : -0.0f);
  }
}

}  // namespace quire::QUIRE_ISA
