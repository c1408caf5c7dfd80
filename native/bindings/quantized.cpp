// Python: packed weights that are quantized.
#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings/packed_weights.h"

namespace quire {
namespace {

class PackedQuantizedWeights : public PackedWeights {
 public:
  // Values are checked by kernels/quantized_tensor.py. `mapped` holds packed weights, or is None.
  PackedQuantizedWeights(int64_t in_features, int64_t out_features, int64_t group_size, int bits,
                         int zero, int scale_dtype, int scale_form, bool has_offsets,
                         bool exact_activations, nb::handle mapped) {
    weights_.in_features = in_features;
    weights_.out_features = out_features;
    weights_.group_size = group_size;
    weights_.bits = bits;
    weights_.zero = zero;
    weights_.scale_dtype = static_cast<DType>(scale_dtype);
    weights_.scale_form = static_cast<ScaleForm>(scale_form);
    weights_.has_offsets = has_offsets;
    weights_.exact_activations = exact_activations;
    const bool two_levels = weights_.scale_form != ScaleForm::direct;
    if (bits < 2 || bits > 8 || bits == 7 || group_size < 16 || scale_form < 0 || scale_form > 2 ||
        (two_levels && (weights_.scale_dtype != DType::float16 ||
                        QuantizedWeights::super_inputs % group_size != 0)) ||
        (weights_.scale_form == ScaleForm::nibbles && !has_offsets))
      throw std::invalid_argument("[linear] no such quantized layout.");
    weights_.data = place(weights_.bytes(), mapped);
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

  // Super scales are None where scales are direct, offsets where there are none.
  void pack(nb::handle codes, nb::handle scales, nb::handle offsets, nb::handle super_scales,
            nb::handle super_offsets, int64_t first_row, int64_t num_rows) {
    check_rows(first_row, num_rows);
    const Input<uint8_t> code_rows(codes, num_rows * weights_.in_features);
    const bool two_levels = weights_.scale_form != ScaleForm::direct;
    const size_t element = two_levels ? 1 : weights_.scale_dtype == DType::float32 ? 4 : 2;
    const size_t bytes = static_cast<size_t>(num_rows * weights_.num_groups()) * element;
    const size_t super_bytes = static_cast<size_t>(num_rows * weights_.num_supers()) * 2;
    const auto buffer = [](nb::handle object, size_t size, bool wanted) {
      return wanted ? std::make_unique<Buffer>(object, size, false) : nullptr;
    };
    const auto pointer = [](const auto& held) -> const void* {
      return held ? held->data() : nullptr;
    };
    const auto scale_rows = buffer(scales, bytes, true);
    const auto offset_rows = buffer(offsets, bytes, weights_.has_offsets);
    const auto supers = buffer(super_scales, super_bytes, two_levels);
    const auto super_offset_rows =
        buffer(super_offsets, super_bytes, two_levels && weights_.has_offsets);
    nb::gil_scoped_release release;
    kernels().pack_quantized(weights_,
                             {code_rows, pointer(scale_rows), pointer(offset_rows), pointer(supers),
                              pointer(super_offset_rows), first_row, num_rows});
  }

  // `blocks` are num_rows rows of a GGUF type's blocks; `type` is its number in the files.
  void pack_gguf(nb::handle blocks, int type, int64_t first_row, int64_t num_rows) {
    check_rows(first_row, num_rows);
    const GgufLayout* layout = find_gguf_layout(type);
    if (!layout || layout->bits != weights_.bits || layout->group_size != weights_.group_size ||
        layout->scale_form != weights_.scale_form || weights_.scale_dtype != DType::float16 ||
        layout->has_offsets != weights_.has_offsets || weights_.in_features % layout->block_inputs)
      throw std::invalid_argument("[linear] the weights' layout must be that of the GGUF type.");
    const int64_t row_bytes = weights_.in_features / layout->block_inputs * layout->block_bytes;
    const Input<uint8_t> rows(blocks, num_rows * row_bytes);
    nb::gil_scoped_release release;
    kernels().pack_gguf(weights_, {layout, rows, first_row, num_rows});
  }

  ExpertMatrix matrix() const override { return {nullptr, &weights_, 0}; }

 private:
  void use_bias(const float* bias) override { weights_.bias = bias; }

  QuantizedWeights weights_{};
};

}  // namespace

void bind_quantized(nb::module_& m) {
  nb::class_<PackedQuantizedWeights, PackedWeights>(m, "PackedQuantizedWeights")
      .def(nb::init<int64_t, int64_t, int64_t, int, int, int, int, bool, bool, nb::handle>(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg().none())
      .def("set_book", &PackedQuantizedWeights::set_book)
      .def("pack", &PackedQuantizedWeights::pack, nb::arg(), nb::arg(), nb::arg().none(),
           nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg())
      .def("pack_gguf", &PackedQuantizedWeights::pack_gguf);
}

}  // namespace quire
