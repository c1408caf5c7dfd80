// Python: packed quantized weights as an object, and the calls on them.
#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings/linear_call.h"
#include "bindings/packed.h"
#include "bindings/packed_memory.h"

namespace quire {
namespace {

class PackedQuantized : public Packed {
 public:
  // Values are checked by kernels/quantized_tensor.py. `mapped` holds packed weights, or is None.
  PackedQuantized(int64_t in_features, int64_t out_features, int64_t group_size, int bits, int zero,
                  int scale_dtype, int scale_form, bool has_offsets, bool exact_activations,
                  nb::handle mapped) {
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
        (two_levels &&
         (weights_.scale_dtype != DType::float16 || group_size > QuantizedWeights::super_inputs)) ||
        (weights_.scale_form == ScaleForm::nibbles && !has_offsets))
      throw std::invalid_argument("[linear] no such quantized layout.");
    memory_ = std::make_unique<PackedMemory>(static_cast<size_t>(weights_.bytes()), mapped);
    weights_.data = memory_->data();
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

  void set_bias(nb::handle bias) {
    bias_ = copy_bias(bias, weights_.out_features);
    weights_.bias = static_cast<const float*>(bias_->data());
  }

  void multiply(nb::handle x, int64_t num_rows, nb::handle out, int64_t column,
                int64_t columns) const {
    const LinearCall call(weights_.in_features, weights_.out_features, x, num_rows, out, column,
                          columns);
    const GilRelease release(num_rows * weights_.in_features * weights_.out_features / 8);
    kernels().linear_quantized(weights_, call.x(), num_rows, call.out(), columns);
  }

  void lookup(nb::handle ids, int64_t num_ids, nb::handle out) const {
    const LookupCall call(weights_.in_features, weights_.out_features, ids, num_ids, out);
    const GilRelease release(num_ids * weights_.in_features * 32);
    kernels().lookup_quantized(weights_, call.ids(), num_ids, call.out());
  }

  ExpertMatrix matrix() const override { return {nullptr, &weights_, 0}; }
  void copy_to(nb::handle out) const { memory_->copy_to(out); }

  size_t packed_bytes() const { return memory_->bytes(); }
  size_t nbytes() const { return memory_->bytes() + (bias_ ? bias_->bytes() : 0); }

 private:
  void check_rows(int64_t first_row, int64_t num_rows) const {
    if (first_row < 0 || num_rows < 0 || first_row + num_rows > weights_.out_features)
      throw std::invalid_argument("[linear] rows must lie inside the outputs.");
    memory_->check_writable();
  }

  QuantizedWeights weights_{};
  std::unique_ptr<PackedMemory> memory_;
  std::unique_ptr<AlignedMemory> bias_;
};

}  // namespace

void bind_quantized(nb::module_& m) {
  nb::class_<PackedQuantized, Packed>(m, "PackedQuantized")
      .def(nb::init<int64_t, int64_t, int64_t, int, int, int, int, bool, bool, nb::handle>(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg().none())
      .def("set_book", &PackedQuantized::set_book)
      .def("pack", &PackedQuantized::pack, nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(),
           nb::arg().none(), nb::arg(), nb::arg())
      .def("pack_gguf", &PackedQuantized::pack_gguf)
      .def("set_bias", &PackedQuantized::set_bias)
      .def("multiply", &PackedQuantized::multiply)
      .def("lookup", &PackedQuantized::lookup)
      .def("copy_to", &PackedQuantized::copy_to)
      .def_prop_ro("packed_bytes", &PackedQuantized::packed_bytes)
      .def_prop_ro("nbytes", &PackedQuantized::nbytes);
}

}  // namespace quire
