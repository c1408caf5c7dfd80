// How Python says what form quantized weights have.
#pragma once
#include <type_traits>

#include "bindings/packed_weights.h"

namespace quire {

// How weights are held, all but their size: parts by name, as kernels/cpu/linear.py makes them.
struct Form {
  int64_t group_size = 0, num_runs = 0, num_outliers = -1;  // the last -1 without
  int64_t stages = 0, input_base = 0, output_base = 0;
  int bits = 0, zero = 0, scale_dtype = 0, scale_form = 0, zero_form = 0, row_form = 0;
  int run_shift = 0, vectors = 0;
  bool has_offsets = false, float_codes = false, has_input_order = false, has_code_sums = false;

  explicit Form(nb::dict from) {
    size_t taken = 0;
    const auto take = [&](const char* name, auto& part) {
      if (!from.contains(name)) return;
      part = nb::cast<std::remove_reference_t<decltype(part)>>(from[name]);
      ++taken;
    };
    take("group_size", group_size);
    take("bits", bits);
    take("zero", zero);
    take("scale_dtype", scale_dtype);
    take("scale_form", scale_form);
    take("zero_form", zero_form);
    take("row_form", row_form);
    take("has_offsets", has_offsets);
    take("float_codes", float_codes);
    take("has_input_order", has_input_order);
    take("run_shift", run_shift);
    take("num_runs", num_runs);
    take("vectors", vectors);
    take("has_code_sums", has_code_sums);
    take("num_outliers", num_outliers);
    take("stages", stages);
    take("input_base", input_base);
    take("output_base", output_base);
    if (taken != from.size()) throw std::invalid_argument("[linear] no such part of a layout.");
  }

  bool is_known() const {
    const auto scales = static_cast<ScaleForm>(scale_form);
    const auto zeros = static_cast<ZeroForm>(zero_form);
    const bool two_levels = scales == ScaleForm::bytes || scales == ScaleForm::nibbles;
    const bool half = static_cast<DType>(scale_dtype) == DType::float16;
    if (bits < 2 || bits > 8 || bits == 7 || group_size < 16) return false;
    if (group_size != 16 && group_size % 32 != 0) return false;
    if (is_lattice()) return is_known_lattice();
    if (stages != 0) return false;
    if (has_code_sums && (row_form != 0 || scales != ScaleForm::direct)) return false;
    if (scales == ScaleForm::table) return is_known_table();
    if (num_outliers != -1) return false;
    if (vectors != 0 || scales == ScaleForm::odd) return is_known_vectors();
    if (scale_form < 0 || scale_form > 5 || zero_form < 0 || zero_form > 2) return false;
    if (row_form < 0 || row_form > 2) return false;
    const bool nested = scales == ScaleForm::nested;
    if (nested != (num_runs > 0) || (nested && row_form != 0)) return false;
    if (run_shift < 0 || run_shift > 30) return false;
    if (two_levels && (!half || QuantizedWeights::super_inputs % group_size != 0)) return false;
    if (scales == ScaleForm::nibbles && !has_offsets) return false;
    if (has_offsets && scale_form > static_cast<int>(ScaleForm::nibbles)) return false;
    if (zeros != ZeroForm::common && (has_offsets || two_levels || float_codes)) return false;
    return !(row_form != 0 && (two_levels || has_offsets)) && (!float_codes || bits == 8);
  }

  bool is_lattice() const { return vectors == static_cast<int>(VectorForm::e8p); }

 private:
  bool is_known_lattice() const {
    return static_cast<ScaleForm>(scale_form) == ScaleForm::direct &&
           static_cast<DType>(scale_dtype) == DType::float32 && num_runs == 0 &&
           num_outliers == -1 && !has_input_order && !has_code_sums && zero_form == 0 &&
           row_form == 0 && !has_offsets && !float_codes && bits == 5 && zero == 16 &&
           group_size % 32 == 0 && stages >= 1 && stages <= 2 && input_base >= 1 &&
           input_base <= 255 && output_base >= 1 && output_base <= 255;
  }

  bool is_known_table() const {
    const auto dtype = static_cast<DType>(scale_dtype);
    return (bits == 3 || bits == 4) && (dtype == DType::float32 || dtype == DType::float16) &&
           zero == 0 && zero_form == 0 && row_form == 0 && vectors == 0 && num_runs == 0 &&
           !has_offsets && !float_codes && !has_input_order && num_outliers >= -1 &&
           num_outliers < INT32_MAX;
  }

  bool is_known_vectors() const {
    if (vectors < 1 || vectors >= num_vector_forms) return false;
    return static_cast<ScaleForm>(scale_form) == ScaleForm::odd && num_runs == 0 &&
           !has_input_order && static_cast<DType>(scale_dtype) == DType::float16 &&
           zero_form == 0 && row_form == 0 && !has_offsets && !float_codes &&
           (bits == 5 || bits == 8) && zero == 1 << (bits - 1) &&
           group_size == vector_layouts[vectors].group_size;
  }
};

}  // namespace quire
