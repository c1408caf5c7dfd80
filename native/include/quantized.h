// The packed layout of a quantized linear layer's weights, the same for every instruction set.
#pragma once

#include <cstdint>

#include "include/activation_scheme.h"
#include "include/row_tables.h"
#include "include/types.h"
#include "include/vectors.h"

namespace quire {

// How the scale of a group is stored, and its offset.
enum class ScaleForm : int32_t {
  direct = 0,   // a number of scale_dtype for each group
  bytes = 1,    // an int8 for each group, times a float16 for each 256 inputs
  nibbles = 2,  // the same, but scales are the low and offsets the high halves of common bytes
  e4m3 = 3,     // an E4M3 for each group
  e8m0 = 4,     // a power of two for each group, 2 ** (byte - 127)
  nested = 5,   // a byte for each group, as NestedScales has it
  odd = 6,      // of vectors: 2 s + 1 of a few bits s, times a float16 for each 256 inputs
  table = 7,    // none: codes are looked up in a table of their row (include/row_tables.h)
};

// Where the code of the value 0 comes from: one for all groups, or a number for each.
enum class ZeroForm : int32_t { common = 0, bytes = 1, halves = 2 };

// What scales are besides: nothing, or times or over a number of the row.
enum class RowForm : int32_t { none = 0, times = 1, over = 2 };

// Scales that are quantized in runs of theirs, which go on from row to row:
//
//   scale = table[byte] * number of the run + offset of the run
//
// A row's header has the place of its first scale among all; 2 ** run_shift of them are a run.
struct NestedScales {
  static constexpr int64_t table_size = 256;
  struct Run {
    float number, offset;
  };
  const float* table;
  const Run* runs;
  int32_t run_shift;
  int64_t num_runs;

  int64_t bytes() const {
    return num_runs * static_cast<int64_t>(sizeof(Run)) + (num_runs > 0) * table_size * 4;
  }
};

// What is done to rows of inputs before a product and to rows of outputs after it
// (cpu/rotation.h): in_features numbers become `stages` copies of the rotated ones, each padded to
// whole records.
struct Rotation {
  int64_t in_features;  // 0 where nothing is rotated
  int64_t stages;
  int64_t input_base, output_base;
  const float* input_factors;   // (in_features,), before the transform
  const float* output_factors;  // (out_features,), after it
  const float* input_matrix;    // (input_base, input_base)
  const float* output_matrix;   // (output_base, output_base)

  int64_t floats(int64_t out_features) const {
    if (in_features == 0) return 0;
    return in_features + out_features + input_base * input_base + output_base * output_base;
  }
};

// weight[n][k] = scale[n][k / group_size] * (code[n][k] - zero) + offset[n][k / group_size], or
// scale * book[code] with a code book of 16 values, or scale * code where codes are E4M3.
// Codes of vectors (include/vectors.h) are looked up in a table first.
// With tables of rows weight[n][k] = table[n][code[n][k]], and what outliers add. A panel is then
//
//   codes   [input / 32] records as below, in the order of include/row_tables.h
//   tables  [32 outputs][2 ** bits] of scale_dtype
//
// With an input order, column k of all that is stored stands for input input_order[k].
//
// Panels of 32 outputs, each contiguous, padded to whole panels and to a multiple of 32 inputs. A
// panel is a header and a row of units, each the inputs whose scales lie together in front of their
// codes, so that a kernel reads one stream. A unit is a group, of 32 inputs at least, or 256 inputs
// where scales have two levels; the last one ends with its last record, but has all its lines.
//
//   header   [32 outputs] float, which scales are times or over; where there are row scales; or
//            [32 outputs] int32, the places of rows' first scales, where these are nested; or
//            [32 outputs] int32, sums of codes less their zero, where activations have zeros
//   scales   direct:     [group][32 outputs] of scale_dtype
//            two levels: [group][32 outputs] bytes, then [32 outputs] float16
//            odd:        the lines of include/vectors.h, then [32 outputs] float16
//            else:       [group][32 outputs] bytes
//   offsets  the same, where there are any; of nibbles the float16 only; or
//   zeros    [group][32 outputs] bytes or float16
//   codes    [input / 32] records of 128 * bits bytes: 1024 codes in the order
//            [input % 32 / 4][32 outputs][input % 4], in bit planes (cpu/quantized_codes.h);
//            of vectors the lines of include/vectors.h
struct QuantizedWeights {
  static constexpr int64_t panel_width = 32;
  static constexpr int64_t record_inputs = 32;
  static constexpr int64_t super_inputs = 256;
  static constexpr int64_t super_records = super_inputs / record_inputs;
  static constexpr int64_t max_activation_inputs = 128;
  static constexpr int64_t record_codes = panel_width * record_inputs;

  int64_t in_features;
  int64_t out_features;
  int64_t group_size;  // 16 or a multiple of 32; divides 256 where scales have two levels
  int32_t bits;        // 2, 3, 4, 5, 6 or 8
  int32_t zero;
  DType scale_dtype;  // float32 or float16; the latter unless direct
  ScaleForm scale_form;
  ZeroForm zeros;
  bool has_offsets;
  RowForm row_scales;
  bool has_book;
  bool float_codes;        // E4M3, of 8 bits
  bool exact_activations;  // multiply float32 activations with dequantized weights
  bool has_code_sums;
  ActivationScheme activations;  // not used with exact ones
  float book[16];
  int8_t book_codes[16];  // the book in steps of book_step, for quantized activations
  float book_step;
  VectorForm vectors;
  const VectorTable* vector_table;  // of layouts with shifts with codes to which 1 was added
  float vector_step;                // what odd scales are times, too
  char* data;
  const float* bias;  // (out_features,) or null
  // After the panels: the runs and the table of nested scales, if they are; (in_features,) or null;
  // outliers, if there are any; and what rotates, if anything does.
  NestedScales nested;
  const int32_t* input_order;
  Outliers outliers;  // (num_outliers,)
  int64_t num_outliers;
  Rotation rotation;

  // Inputs whose activations share a scale when they are rounded to 8 bits: 32, or as many as
  // weights of few bits do. Those are so coarse that rounding more activations together costs next
  // to nothing.
  int64_t activation_inputs() const {
    if (bits > 4 || has_two_levels()) return record_inputs;
    int64_t inputs = max_activation_inputs;
    while (inputs > record_inputs && group_size % inputs != 0) inputs /= 2;
    return inputs;
  }
  bool has_two_levels() const {
    return scale_form == ScaleForm::bytes || scale_form == ScaleForm::nibbles ||
           scale_form == ScaleForm::odd;
  }
  // Whether sums of activations have a part in a product: offsets, or zeros of groups.
  bool has_corrections() const { return has_offsets || zeros != ZeroForm::common; }
  // Whether a product is one integer sum of bytes: rows of weights and of activations have one
  // scale each.
  bool sums_whole_rows() const {
    return activations.is_bytes() && bits == 8 && group_size >= in_features && !float_codes &&
           scale_form == ScaleForm::direct && zeros == ZeroForm::common && !has_offsets &&
           row_scales == RowForm::none && activations.has_zeros == has_code_sums;
  }
  // Whether products are made of floats: of codes that are no integers, the weights' or the
  // activations', or whose zeros no sum takes out.
  bool multiplies_floats() const {
    if (exact_activations || float_codes || activations.codes == ActivationCodes::e4m3) return true;
    return activations.is_bytes() && !sums_whole_rows() && (activations.has_zeros || bits == 8);
  }

  // Whether E4M3 codes are multiplied as bfloat16: those that have a scale at least a record.
  bool multiplies_pairs() const {
    return float_codes && !exact_activations && group_size >= record_inputs &&
           activations.group_size % record_inputs == 0;
  }

  bool is_rotated() const { return rotation.in_features != 0; }
  // Of the rows that are given, and looked at after their rotation.
  int64_t given_inputs() const { return is_rotated() ? rotation.in_features : in_features; }
  bool has_vectors() const { return vectors != VectorForm::none; }
  // Whether codes lie there as the bytes that they are.
  bool holds_bytes() const { return bits == 8 && !has_vectors(); }

  bool has_tables() const { return scale_form == ScaleForm::table; }
  int64_t tables_begin() const { return num_records() * record_bytes(); }
  int64_t tables_bytes() const { return has_tables() ? scale_line_bytes() << bits : 0; }

  int64_t num_records() const { return (in_features + record_inputs - 1) / record_inputs; }
  int64_t padded_inputs() const { return num_records() * record_inputs; }
  int64_t num_groups() const { return (in_features + group_size - 1) / group_size; }
  int64_t num_panels() const { return (out_features + panel_width - 1) / panel_width; }
  int64_t record_bytes() const {
    if (has_vectors()) return vector_layout(vectors).record_lines() * panel_width;
    return record_codes / 8 * bits;
  }
  int64_t scale_line_bytes() const { return panel_width * (scale_dtype == DType::float32 ? 4 : 2); }

  int64_t unit_inputs() const {
    if (has_two_levels()) return super_inputs;
    return group_size > record_inputs ? group_size : record_inputs;
  }
  int64_t unit_records() const { return unit_inputs() / record_inputs; }
  int64_t unit_groups() const { return unit_inputs() / group_size; }
  int64_t num_units() const { return (in_features + unit_inputs() - 1) / unit_inputs(); }
  // Of a unit: the lines of its groups, before the line of super scales.
  int64_t group_line_bytes() const {
    return scale_form == ScaleForm::direct ? scale_line_bytes() : panel_width;
  }
  [[gnu::always_inline]] int64_t group_lines_bytes() const {
    if (has_tables()) return 0;
    if (scale_form == ScaleForm::odd) return vector_layout(vectors).scale_lines() * panel_width;
    return unit_groups() * group_line_bytes();
  }
  int64_t zero_line_bytes() const { return panel_width * (zeros == ZeroForm::bytes ? 1 : 2); }
  int64_t super_line_bytes() const { return has_two_levels() ? scale_line_bytes() : 0; }
  [[gnu::always_inline]] int64_t offsets_begin() const {
    return group_lines_bytes() + super_line_bytes();
  }
  // Where super offsets are, after those of groups.
  [[gnu::always_inline]] int64_t super_offsets_begin() const {
    return offsets_begin() + (scale_form == ScaleForm::nibbles ? 0 : group_lines_bytes());
  }
  [[gnu::always_inline]] int64_t codes_begin() const {
    if (has_offsets) return super_offsets_begin() + super_line_bytes();
    if (zeros != ZeroForm::common) return offsets_begin() + unit_groups() * zero_line_bytes();
    return offsets_begin();
  }
  [[gnu::always_inline]] int64_t unit_bytes() const {
    return codes_begin() + unit_records() * record_bytes();
  }
  bool has_header() const {
    return row_scales != RowForm::none || scale_form == ScaleForm::nested || has_code_sums;
  }
  int64_t header_bytes() const { return has_header() ? panel_width * 4 : 0; }
  [[gnu::always_inline]] int64_t panel_bytes() const {
    if (has_tables()) return tables_begin() + tables_bytes();
    return header_bytes() + num_units() * codes_begin() + num_records() * record_bytes();
  }
  [[gnu::always_inline]] int64_t bytes() const { return num_panels() * panel_bytes(); }
};

// Rows of a matrix as they are stored, unpacked: codes (num_rows, in_features), scales and offsets
// (num_rows, num_groups) of scale_dtype, or bytes; zeros (num_rows, num_groups); headers
// (num_rows,) of 4 bytes. What the weights do not have is null. With tables scales are those,
// (num_rows, 2 ** bits).
struct QuantizedRows {
  const uint8_t* codes;
  const void* scales;
  const void* offsets;
  const void* zeros;
  const void* headers;
  int64_t first_row;  // the output that is the first of them
  int64_t num_rows;
};

}  // namespace quire
