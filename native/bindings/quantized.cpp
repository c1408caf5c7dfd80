// Python: packed quantized weights as an object, and the calls on them.
#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings/linear_call.h"

namespace quire {
namespace {

class PackedQuantized {
 public:
  // Values are checked by kernels/quantized_tensor.py.
  PackedQuantized(int64_t in_features, int64_t out_features, int64_t group_size, int bits, int zero,
                  int scale_dtype, bool has_offsets, bool exact_activations) {
    weights_.in_features = in_features;
    weights_.out_features = out_features;
    weights_.group_size = group_size;
    weights_.bits = bits;
    weights_.zero = zero;
    weights_.scale_dtype = static_cast<DType>(scale_dtype);
    weights_.has_offsets = has_offsets;
    weights_.exact_activations = exact_activations;
    if (bits < 2 || bits > 8 || bits == 7 || group_size < 16)
      throw std::invalid_argument("[linear] no such quantized layout.");
    memory_ = std::make_unique<AlignedMemory>(static_cast<size_t>(weights_.bytes()));
    weights_.data = static_cast<char*>(memory_->data());
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

  void pack(nb::handle codes, nb::handle scales, nb::handle offsets, int64_t first_row,
            int64_t num_rows) {
    if (first_row < 0 || num_rows < 0 || first_row + num_rows > weights_.out_features)
      throw std::invalid_argument("[linear] rows must lie inside the outputs.");
    const Input<uint8_t> code_rows(codes, num_rows * weights_.in_features);
    const size_t bytes = static_cast<size_t>(num_rows * weights_.num_groups()) *
                         (weights_.scale_dtype == DType::float32 ? 4 : 2);
    const Buffer scale_rows(scales, bytes, false);
    const Buffer offset_rows(weights_.has_offsets ? offsets : scales, bytes, false);
    nb::gil_scoped_release release;
    kernels().pack_quantized(
        weights_, {code_rows, scale_rows.data(), offset_rows.data(), first_row, num_rows});
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

  size_t nbytes() const { return memory_->bytes() + (bias_ ? bias_->bytes() : 0); }

 private:
  QuantizedWeights weights_{};
  std::unique_ptr<AlignedMemory> memory_, bias_;
};

}  // namespace

void bind_quantized(nb::module_& m) {
  nb::class_<PackedQuantized>(m, "PackedQuantized")
      .def(nb::init<int64_t, int64_t, int64_t, int, int, int, bool, bool>())
      .def("set_book", &PackedQuantized::set_book)
      .def("pack", &PackedQuantized::pack, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
           nb::arg())
      .def("set_bias", &PackedQuantized::set_bias)
      .def("multiply", &PackedQuantized::multiply)
      .def("lookup", &PackedQuantized::lookup)
      .def_prop_ro("nbytes", &PackedQuantized::nbytes);
}

}  // namespace quire
