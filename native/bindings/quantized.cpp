// Python: packed weights that are quantized.
#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings/packed_weights.h"
#include "bindings/quantized_form.h"
#include "runtime/matrix_rows.h"
#include "runtime/vector_tables.h"

namespace quire {
namespace {

class PackedQuantizedWeights : public PackedWeights {
 public:
  // Values are checked by kernels/matrices/quantized_tensor.py. `mapped` holds packed weights, or
  // is None.
  PackedQuantizedWeights(int64_t in_features, int64_t out_features, nb::dict layout,
                         bool exact_activations, nb::handle mapped) {
    const Form form(layout);
    if (in_features < 1 || out_features < 1 || !form.is_known())
      throw std::invalid_argument("[linear] no such quantized layout.");
    weights_.in_features = in_features;
    weights_.out_features = out_features;
    weights_.group_size = form.group_size;
    if (form.is_lattice()) use_rotation(form);
    weights_.bits = form.bits;
    weights_.zero = form.zero;
    weights_.scale_dtype = static_cast<DType>(form.scale_dtype);
    weights_.scale_form = static_cast<ScaleForm>(form.scale_form);
    weights_.zeros = static_cast<ZeroForm>(form.zero_form);
    weights_.has_offsets = form.has_offsets;
    weights_.row_scales = static_cast<RowForm>(form.row_form);
    weights_.float_codes = form.float_codes;
    weights_.vectors = static_cast<VectorForm>(form.vectors);
    if (weights_.scale_form == ScaleForm::odd && in_features % QuantizedWeights::super_inputs)
      throw std::invalid_argument("[linear] vectors need a multiple of 256 inputs.");
    if (weights_.has_tables() && in_features % QuantizedWeights::record_inputs)
      throw std::invalid_argument("[linear] tables of rows need a multiple of 32 inputs.");
    static const uint8_t zeros[2048 * 8] = {};  // until set_vectors: as large as any table
    if (weights_.has_vectors())
      weights_.vector_table = vector_table_of(vector_layout(weights_.vectors), zeros);
    weights_.exact_activations = exact_activations;
    weights_.has_code_sums = form.has_code_sums;
    const int64_t order_bytes = form.has_input_order ? in_features * 4 : 0;
    NestedScales& nested = weights_.nested;
    nested.run_shift = form.run_shift;
    nested.num_runs = form.num_runs;
    const bool has_outliers = form.num_outliers >= 0;
    weights_.num_outliers = has_outliers ? form.num_outliers : 0;
    const int64_t outlier_bytes = has_outliers * (out_features + 1) * 4 + weights_.num_outliers * 8;
    const int64_t rotation_bytes = weights_.rotation.floats(out_features) * 4;
    weights_.data = place(
        weights_.bytes() + nested.bytes() + order_bytes + outlier_bytes + rotation_bytes, mapped);
    char* tail = weights_.data + weights_.bytes();
    nested.runs = reinterpret_cast<const NestedScales::Run*>(tail);
    nested.table = reinterpret_cast<const float*>(nested.runs + nested.num_runs);
    if (form.has_input_order)
      weights_.input_order = reinterpret_cast<int32_t*>(tail + nested.bytes());
    if (has_outliers) {
      weights_.outliers.starts = reinterpret_cast<int32_t*>(tail);
      weights_.outliers.columns = weights_.outliers.starts + out_features + 1;
      weights_.outliers.values =
          reinterpret_cast<const float*>(weights_.outliers.columns + weights_.num_outliers);
    }
    if (weights_.is_rotated()) place_rotation(reinterpret_cast<const float*>(tail));
  }

  // Factors of inputs and outputs, and the matrices of both rotations.
  void set_rotation(nb::handle input_factors, nb::handle output_factors, nb::handle input_matrix,
                    nb::handle output_matrix) {
    const Rotation& rotation = weights_.rotation;
    if (!weights_.is_rotated())
      throw std::invalid_argument("[linear] a rotation must be in the layout.");
    const auto copy = [](nb::handle from, const float* to, int64_t size) {
      std::memcpy(const_cast<float*>(to), Input<float>(from, size),
                  static_cast<size_t>(size) * sizeof(float));
    };
    copy(input_factors, rotation.input_factors, rotation.in_features);
    copy(output_factors, rotation.output_factors, weights_.out_features);
    copy(input_matrix, rotation.input_matrix, rotation.input_base * rotation.input_base);
    copy(output_matrix, rotation.output_matrix, rotation.output_base * rotation.output_base);
  }

  // Codes (stages, out_features, in_features / 8), of a vector's number and its signs byte, and the
  // scales of rows in each stage, (out_features, stages).
  void pack_lattice(nb::handle codes, nb::handle scales) {
    const Rotation& rotation = weights_.rotation;
    if (!weights_.is_rotated())
      throw std::invalid_argument("[linear] lattice codes must be in the layout.");
    check_rows(0, weights_.out_features);
    const int64_t rows = weights_.out_features;
    const Input<uint16_t> numbers(codes, rotation.stages * rows * (rotation.in_features / 8));
    const Input<float> factors(scales, rows * rotation.stages);
    nb::gil_scoped_release release;
    kernels().pack_lattice(weights_, numbers, factors);
  }

  // A permutation of the inputs, checked by kernels/matrices/quantized_tensor.py.
  void set_input_order(nb::handle order) {
    const Input<int32_t> inputs(order, weights_.in_features);
    if (!weights_.input_order || !ids_inside(inputs, weights_.in_features, weights_.in_features))
      throw std::invalid_argument(
          "[linear] an input order names inputs, where the layout has one.");
    std::memcpy(const_cast<int32_t*>(weights_.input_order), inputs,
                static_cast<size_t>(weights_.in_features) * sizeof(int32_t));
  }

  // How inputs are rounded: a rule that kernels/matrices/quantized_tensor.py has checked.
  void set_activations(int codes, int64_t group_size, float scale, int zero, bool has_zeros,
                       float threshold, bool has_power_factors) {
    const auto kind = static_cast<ActivationCodes>(codes);
    if (codes < 1 || codes > 5 || group_size < 0 || group_size % 16 || !(scale >= 0) ||
        zero < -128 || zero > 127)
      throw std::invalid_argument("[linear] no such rule for inputs.");
    weights_.activations = {kind, group_size, scale, zero, has_zeros, threshold, has_power_factors};
    if (kind == ActivationCodes::outliers && (!weights_.sums_whole_rows() || weights_.input_order))
      throw std::invalid_argument("[linear] outliers need bytes of whole rows.");
  }

  // Numbers and offsets of the runs from `first` on, (runs, 2), and what the bytes of scales mean.
  void set_nested(nb::handle table, nb::handle runs, int64_t first, int64_t num_runs) {
    const NestedScales& nested = weights_.nested;
    if (first < 0 || num_runs < 1 || num_runs > nested.num_runs - first)
      throw std::invalid_argument("[linear] runs of nested scales must be those of the layout.");
    const Input<float> values(table, NestedScales::table_size), pairs(runs, num_runs * 2);
    std::memcpy(const_cast<float*>(nested.table), values, NestedScales::table_size * 4);
    std::memcpy(const_cast<NestedScales::Run*>(nested.runs + first), pairs,
                static_cast<size_t>(num_runs) * sizeof(NestedScales::Run));
  }

  // Outliers of the rows from first_row on, after `first` of rows before them: where each row's
  // begin and the last one's end (num_rows + 1,), their columns and their values (count,).
  void set_outliers(nb::tuple parts, int64_t first_row, int64_t num_rows, int64_t first,
                    int64_t count) {
    check_rows(first_row, num_rows);
    if (!weights_.outliers.starts || first < 0 || count < 0 ||
        count > weights_.num_outliers - first)
      throw std::invalid_argument("[linear] outliers must be those of the layout.");
    const Input<int32_t> starts(parts[0], num_rows + 1), columns(parts[1], count);
    const Input<float> values(parts[2], count);
    if (!ids_inside(columns, count, weights_.in_features) || starts[0] != 0 ||
        starts[num_rows] != count)
      throw std::invalid_argument("[linear] outliers must be in the columns, and all in rows.");
    auto* to = const_cast<int32_t*>(weights_.outliers.starts) + first_row;
    for (int64_t i = 0; i <= num_rows; ++i) {
      if (i > 0 && starts[i] < starts[i - 1])
        throw std::invalid_argument("[linear] outliers must be in the order of rows.");
      to[i] = static_cast<int32_t>(first + starts[i]);
    }
    const auto bytes = static_cast<size_t>(count) * 4;
    std::memcpy(const_cast<int32_t*>(weights_.outliers.columns + first), columns, bytes);
    std::memcpy(const_cast<float*>(weights_.outliers.values + first), values, bytes);
  }

  void set_book(const std::vector<float>& values, const std::vector<int>& codes, float step) {
    if (weights_.bits != 4 || values.size() != 16 || codes.size() != 16)
      throw std::invalid_argument("[linear] a code book has 16 values for 4 bits.");
    weights_.has_book = true;
    weights_.book_step = step;
    for (size_t i = 0; i < 16; ++i) {
      weights_.book[i] = values[i];
      weights_.book_codes[i] = static_cast<int8_t>(codes[i]);
    }
  }

  // The codes of each vector, and what scales are times.
  void set_vectors(nb::handle table, float step) {
    const VectorLayout& layout = vector_layout(weights_.vectors);
    const int64_t size = layout.indices() * layout.inputs;
    const Input<uint8_t> codes(table, size);
    weights_.vector_step = step;
    const VectorTable* table_of_codes = vector_table_of(layout, codes);
    if (!table_of_codes)
      throw std::invalid_argument(
          "[linear] vectors have at most 4 codes, or 16 where they are short; 2048 are in runs.");
    weights_.vector_table = table_of_codes;
  }

  // What the layout does not have is None.
  void pack(nb::handle codes, nb::handle scales, nb::handle offsets, nb::handle zeros,
            nb::handle headers, int64_t first_row, int64_t num_rows) {
    check_rows(first_row, num_rows);
    if (weights_.has_vectors() || weights_.has_two_levels())
      throw std::invalid_argument(
          "[linear] vectors and scales of two levels are packed from blocks.");
    const Input<uint8_t> code_rows(codes, num_rows * weights_.in_features);
    const bool tables = weights_.has_tables();
    const int64_t groups = num_rows * weights_.num_groups();
    const int64_t scale_bytes = (tables ? weights_.tables_bytes() : weights_.group_line_bytes()) /
                                QuantizedWeights::panel_width;
    const int64_t zero_bytes = weights_.zero_line_bytes() / QuantizedWeights::panel_width;
    const auto buffer = [](nb::handle object, int64_t size, bool wanted) {
      return wanted ? std::make_unique<Buffer>(object, static_cast<size_t>(size), false) : nullptr;
    };
    const auto pointer = [](const auto& held) -> const void* {
      return held ? held->data() : nullptr;
    };
    const auto scale_rows = buffer(scales, (tables ? num_rows : groups) * scale_bytes, true);
    const auto offset_rows = buffer(offsets, groups * scale_bytes, weights_.has_offsets);
    const auto zero_rows = buffer(zeros, groups * zero_bytes, weights_.zeros != ZeroForm::common);
    const auto header_rows = buffer(headers, num_rows * 4, weights_.has_header());
    if (weights_.scale_form == ScaleForm::nested)
      check_runs(static_cast<const int32_t*>(pointer(header_rows)), num_rows);
    nb::gil_scoped_release release;
    kernels().pack_quantized(
        weights_, {code_rows, pointer(scale_rows), pointer(offset_rows), pointer(zero_rows),
                   pointer(header_rows), first_row, num_rows});
  }

  // `blocks` are num_rows rows of a GGUF type's blocks; `type` is its number in the files.
  void pack_gguf(nb::handle blocks, int type, int64_t first_row, int64_t num_rows) {
    check_rows(first_row, num_rows);
    if (weights_.has_vectors()) return pack_gguf_vectors(blocks, type, first_row, num_rows);
    const GgufLayout* layout = find_gguf_layout(type);
    if (!layout || layout->bits != weights_.bits || layout->group_size != weights_.group_size ||
        layout->scale_form != weights_.scale_form || weights_.scale_dtype != DType::float16 ||
        layout->has_offsets != weights_.has_offsets ||
        weights_.in_features % layout->block_inputs || weights_.zeros != ZeroForm::common ||
        weights_.has_header() || weights_.float_codes || weights_.input_order ||
        weights_.has_tables())
      throw std::invalid_argument("[linear] the weights' layout must be that of the GGUF type.");
    const int64_t row_bytes = weights_.in_features / layout->block_inputs * layout->block_bytes;
    const Input<uint8_t> rows(blocks, num_rows * row_bytes);
    nb::gil_scoped_release release;
    kernels().pack_gguf(weights_, {layout, rows, first_row, num_rows});
  }

  ExpertMatrix matrix() const override { return {nullptr, &weights_, 0}; }
  int matrix_form() const { return quire::matrix_form(weights_); }

 private:
  void pack_gguf_vectors(nb::handle blocks, int type, int64_t first_row, int64_t num_rows) {
    const GgufVectors* vectors = find_gguf_vectors(type);
    if (!vectors || vectors->form != weights_.vectors)
      throw std::invalid_argument("[linear] the weights' layout must be that of the GGUF type.");
    const int64_t row_blocks = weights_.in_features / QuantizedWeights::super_inputs;
    const Input<uint8_t> rows(blocks, num_rows * row_blocks * vectors->block_bytes);
    nb::gil_scoped_release release;
    kernels().pack_gguf_vectors(weights_, {vectors, rows, first_row, num_rows});
  }

  // Of a layout of that form, whose in_features are those that are given.
  void use_rotation(const Form& form) {
    Rotation& rotation = weights_.rotation;
    const int64_t inputs = weights_.in_features, outputs = weights_.out_features;
    const auto splits = [](int64_t size, int64_t base) {
      const int64_t power = size / base;
      return power * base == size && (power & (power - 1)) == 0;
    };
    if (inputs % 8 != 0 || form.group_size != ceil_to_record(inputs) ||
        !splits(inputs, form.input_base) || !splits(outputs, form.output_base))
      throw std::invalid_argument("[linear] no such rotation of inputs and outputs.");
    rotation.in_features = inputs;
    rotation.stages = form.stages;
    rotation.input_base = form.input_base;
    rotation.output_base = form.output_base;
    weights_.in_features = form.stages * form.group_size;
  }
  static int64_t ceil_to_record(int64_t inputs) {
    constexpr int64_t record = QuantizedWeights::record_inputs;
    return (inputs + record - 1) / record * record;
  }
  void place_rotation(const float* from) {
    Rotation& rotation = weights_.rotation;
    rotation.input_factors = from;
    rotation.output_factors = from + rotation.in_features;
    rotation.input_matrix = rotation.output_factors + weights_.out_features;
    rotation.output_matrix = rotation.input_matrix + rotation.input_base * rotation.input_base;
  }

  // Rows' scales are those of runs that there are; half a record of padding reads one scale more.
  void check_runs(const int32_t* first, int64_t num_rows) const {
    const int64_t most = (weights_.nested.num_runs << weights_.nested.run_shift) - 1;
    for (int64_t i = 0; i < num_rows; ++i)
      if (first[i] < 0 || first[i] + weights_.num_groups() > most)
        throw std::invalid_argument("[linear] rows' scales must be in the runs of the layout.");
  }

  void use_bias(const float* bias) override { weights_.bias = bias; }

  QuantizedWeights weights_{};
};

}  // namespace

void bind_quantized(nb::module_& m) {
  nb::class_<PackedQuantizedWeights, PackedWeights>(m, "PackedQuantizedWeights")
      .def(nb::init<int64_t, int64_t, nb::dict, bool, nb::handle>(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg(), nb::arg().none())
      .def("set_book", &PackedQuantizedWeights::set_book)
      .def("set_vectors", &PackedQuantizedWeights::set_vectors)
      .def("set_input_order", &PackedQuantizedWeights::set_input_order)
      .def("set_rotation", &PackedQuantizedWeights::set_rotation)
      .def("pack_lattice", &PackedQuantizedWeights::pack_lattice)
      .def("set_activations", &PackedQuantizedWeights::set_activations)
      .def("set_nested", &PackedQuantizedWeights::set_nested)
      .def("set_outliers", &PackedQuantizedWeights::set_outliers)
      .def("pack", &PackedQuantizedWeights::pack, nb::arg(), nb::arg(), nb::arg().none(),
           nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg())
      .def("pack_gguf", &PackedQuantizedWeights::pack_gguf)
      .def_prop_ro("matrix_form", &PackedQuantizedWeights::matrix_form);
}

}  // namespace quire
