// Where the records of a panel lie, and lines of scales, offsets and zeros made floats for kernels.
#pragma once

#include "cpu/quantized_codes.h"
#include "cpu/quantized_vectors.h"
#include "simd/byte_table.h"

namespace quire::QUIRE_ISA {

// Where `records` records of a panel begin, from record `first` on.
struct RecordSpan {
  const char* panel;
  int64_t first;
  int64_t records;
};

// A span whose records have their lines in common, `joined` at a time from the first on: only the
// first of those is given its lines.
struct LineSpan : RecordSpan {
  int64_t joined = 1;
  LineSpan(const RecordSpan& span, int64_t joined = 1) : RecordSpan(span), joined(joined) {}
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

// A line of scales or offsets as float, times `factor`.
template <class T>
inline void read_line(const T* line, F32 factor, float* out) {
  for (int64_t i = 0; i < QuantizedWeights::panel_width; i += F32::lanes)
    store(out + i, load(line + i) * factor);
}

inline void read_powers(const uint8_t* line, F32 factor, float* out) {
  for (int64_t i = 0; i < QuantizedWeights::panel_width; i += F32::lanes)
    store(out + i, load_powers(line + i) * factor);
}

// Scales that are nested, of one panel after the other: a multiplication and a sum.
class NestedLines {
 public:
  explicit NestedLines(const QuantizedWeights& weights)
      : nested_(weights.nested),
        table_(weights.scale_form == ScaleForm::nested ? nested_.table : nullptr) {}

  // Of a panel with this header: what was found for it last time is still known.
  void begin(const char* header) {
    const auto* first = reinterpret_cast<const int32_t*>(header);
    if (first != first_) begin_ = end_ = 0;
    first_ = first;
  }

  // Lines of bytes looked up.
  static constexpr int together = ByteTable::lines;
  void look_up(const uint8_t* const (&lines)[together], float* out) const {
    table_.look_up(lines, out);
  }

  // The scales of group `group` that a line was looked up as, times `factor`.
  void scale(const float* numbers, int32_t group, F32 factor, float* out) {
    if (group < begin_ || group >= end_) find_runs(group);
    for (int i = 0; i < panel; i += F32::lanes)
      store(out + i, (load(numbers + i) * load(numbers_ + i) + load(offsets_ + i)) * factor);
  }

 private:
  static constexpr int panel = QuantizedWeights::panel_width;

  // The rows' runs, and the first group at which one of them has another.
  void find_runs(int32_t group) {
    const auto* runs = reinterpret_cast<const float*>(nested_.runs);
    const uint32_t run = 1u << nested_.run_shift;
    Words left = Words{} + run;
    for (int i = 0; i < panel; i += F32::lanes) {
      Words place;
      std::memcpy(&place, first_ + i, sizeof(place));
      place += static_cast<uint32_t>(group);
      const Words rest = run - (place & (run - 1)), found = (place >> nested_.run_shift) * 2;
      left = rest < left ? rest : left;
      store(numbers_ + i, gather(runs, found));
      store(offsets_ + i, gather(runs + 1, found));
    }
    uint32_t least = run;
    for (int lane = 0; lane < F32::lanes; ++lane) least = smaller<uint32_t>(least, left[lane]);
    begin_ = group;
    end_ = group + static_cast<int32_t>(least);
  }

  const NestedScales& nested_;
  const ByteTable table_;
  const int32_t* first_ = nullptr;
  int32_t begin_ = 0, end_ = 0;
  alignas(64) float numbers_[panel], offsets_[panel];
};

// Goes through the groups of a span, some inputs at a time.
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

// A line of a span for each half of a record, of groups of `line_bytes` each that begin at `begin`
// of their unit, to [record][half][32 outputs]; one half where groups are whole records. read(line,
// walk, out) reads one.
template <class Read>
inline void read_lines(const QuantizedWeights& weights, const PanelMap& map, const LineSpan& span,
                       int64_t begin, int64_t line_bytes, float* out, const Read& read) {
  constexpr int64_t panel = QuantizedWeights::panel_width;
  const bool halves = weights.group_size < QuantizedWeights::record_inputs;
  const int64_t step =
      halves ? QuantizedWeights::record_inputs / 2 : QuantizedWeights::record_inputs * span.joined;
  const int64_t count = halves ? 2 * span.records : ceil_div(span.records, span.joined);
  GroupWalk walk(weights, map, span);
  for (int64_t i = 0; i < count; ++i, out += span.joined * panel) {
    read(walk.unit() + begin + walk.group() * line_bytes, walk, out);
    walk.step(step);
  }
}

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

// Lines of two levels: an int8 of the group, or a half byte, times what is read for 256 inputs.
inline void read_two_levels(const QuantizedWeights& weights, const PanelMap& map,
                            const RecordSpan& span, ScaleKind kind, F32 factor, float* out) {
  constexpr int64_t panel = QuantizedWeights::panel_width;
  const bool scales = kind == ScaleKind::scale, nibbles = weights.scale_form == ScaleForm::nibbles;
  const int64_t begin = scales || nibbles ? 0 : map.offsets_begin;
  const int64_t super_begin = scales ? map.supers_begin : map.super_offsets_begin;
  const int shift = scales ? 0 : 4;
  alignas(64) float supers[panel];
  bool has_supers = false;
  read_lines(weights, map, span, begin, panel, out,
             [&](const char* line, const GroupWalk& walk, float* to) {
               if (!has_supers || walk.begins_unit())
                 read_line(reinterpret_cast<const F16*>(walk.unit() + super_begin), factor, supers);
               has_supers = true;
               const auto* group = reinterpret_cast<const int8_t*>(line);
               int8_t half_bytes[panel];
               if (nibbles) {
                 for (int i = 0; i < panel; ++i)
                   half_bytes[i] =
                       static_cast<int8_t>(static_cast<uint8_t>(group[i]) >> shift & 15);
                 group = half_bytes;
               }
               for (int64_t i = 0; i < panel; i += F32::lanes)
                 store(to + i, load(group + i) * load(supers + i));
             });
}

// Nested scales.
inline void read_nested(const QuantizedWeights& weights, const PanelMap& map, const LineSpan& span,
                        F32 factor, NestedLines& nested, float* out) {
  constexpr int64_t panel = QuantizedWeights::panel_width;
  constexpr int together = NestedLines::together;
  const bool halves = weights.group_size < QuantizedWeights::record_inputs;
  const int64_t step =
      halves ? QuantizedWeights::record_inputs / 2 : QuantizedWeights::record_inputs * span.joined;
  int64_t input = span.first * QuantizedWeights::record_inputs;
  int64_t group = input / weights.group_size;
  int waiting = 0;
  const uint8_t* lines[together];
  float* outs[together];
  alignas(64) float numbers[together * panel];
  nested.begin(span.panel);
  const auto scale_waiting = [&] {
    for (int i = waiting; i < together; ++i) lines[i] = lines[0];
    nested.look_up(lines, numbers);
    for (int i = 0; i < waiting; ++i, input += step) {
      if (input >= (group + 1) * weights.group_size) ++group;
      nested.scale(numbers + i * panel, static_cast<int32_t>(group), factor, outs[i]);
    }
    waiting = 0;
  };
  read_lines(weights, map, span, 0, weights.group_line_bytes(), out,
             [&](const char* line, const GroupWalk&, float* to) {
               lines[waiting] = reinterpret_cast<const uint8_t*>(line);
               outs[waiting++] = to;
               if (waiting == together) scale_waiting();
             });
  if (waiting > 0) scale_waiting();
}

// Scales or offsets of a span times `factor`, [record][half][32 outputs]; one half where groups are
// whole records. Without what a panel's header has for each output.
inline void read_scales(const QuantizedWeights& weights, const PanelMap& map, const LineSpan& span,
                        ScaleKind kind, float factor, float* out) {
  if (weights.scale_form == ScaleForm::odd)
    return with_form(weights.vectors, [&](auto constant) {
      read_odd_scales<decltype(constant)::form>(weights, map, span, factor, out);
    });
  const F32 factors = set1(factor);
  if (weights.has_two_levels()) return read_two_levels(weights, map, span, kind, factors, out);
  if (weights.scale_form == ScaleForm::nested) {
    NestedLines nested(weights);
    return read_nested(weights, map, span, factors, nested, out);
  }
  const int64_t begin = kind == ScaleKind::scale ? 0 : map.offsets_begin;
  const auto read = [&](const auto& read_one) {
    read_lines(weights, map, span, begin, weights.group_line_bytes(), out,
               [&](const char* line, const GroupWalk&, float* to) { read_one(line, to); });
  };
  if (weights.scale_form == ScaleForm::e4m3)
    read([unit = factors * set1(e4m3_unit)](const char* line, float* to) {
      read_line(reinterpret_cast<const E4M3*>(line), unit, to);
    });
  else if (weights.scale_form == ScaleForm::e8m0)
    read([=](const char* line, float* to) {
      read_powers(reinterpret_cast<const uint8_t*>(line), factors, to);
    });
  else if (weights.scale_dtype == DType::float32)
    read([=](const char* line, float* to) {
      read_line(reinterpret_cast<const float*>(line), factors, to);
    });
  else
    read([=](const char* line, float* to) {
      read_line(reinterpret_cast<const F16*>(line), factors, to);
    });
}

// The codes of 0 of a span's groups, where each has its own: as read_scales has its lines.
inline void read_zeros(const QuantizedWeights& weights, const PanelMap& map, const LineSpan& span,
                       float* out) {
  const int64_t bytes = weights.zero_line_bytes();
  if (weights.zeros == ZeroForm::halves)
    read_lines(weights, map, span, map.offsets_begin, bytes, out,
               [](const char* line, const GroupWalk&, float* to) {
                 read_line(reinterpret_cast<const F16*>(line), set1(1.0f), to);
               });
  else
    read_lines(weights, map, span, map.offsets_begin, bytes, out,
               [](const char* line, const GroupWalk&, float* to) {
                 const auto* zeros = reinterpret_cast<const uint8_t*>(line);
                 for (int64_t n = 0; n < QuantizedWeights::panel_width; n += F32::lanes)
                   store(to + n, to_float(load_words(zeros + n)));
               });
}

// What the sums of a span's activations are multiplied by: offsets, or zeros times `scales`.
inline void read_corrections(const QuantizedWeights& weights, const PanelMap& map,
                             const LineSpan& span, const float* scales, float* out) {
  constexpr int64_t panel = QuantizedWeights::panel_width;
  if (weights.has_offsets) return read_scales(weights, map, span, ScaleKind::offset, 1.0f, out);
  read_zeros(weights, map, span, out);
  const int64_t halves = weights.group_size < QuantizedWeights::record_inputs ? 2 : 1;
  for (int64_t line = 0; line < span.records * halves; line += span.joined)
    for (int64_t i = line * panel; i < (line + 1) * panel; i += F32::lanes)
      store(out + i, zero() - load(out + i) * load(scales + i));
}

// Numbers times or over what a panel's header has for each output: [line][32 outputs].
inline void apply_row_scales(RowForm form, const char* header, int64_t lines, float* numbers) {
  constexpr int64_t panel = QuantizedWeights::panel_width;
  for (int64_t n = 0; n < panel; n += F32::lanes) {
    const F32 row = load(reinterpret_cast<const float*>(header) + n);
    for (int64_t at = n; at < lines * panel; at += panel) {
      const F32 number = load(numbers + at);
      store(numbers + at, form == RowForm::times ? number * row : number / row);
    }
  }
}

}  // namespace quire::QUIRE_ISA
