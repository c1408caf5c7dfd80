// Python: packed linear weights as an object, and the calls on them.
#include "bindings/linear_call.h"
#include "bindings/packed.h"
#include "bindings/packed_memory.h"

namespace quire {
namespace {

class PackedLinear : public Packed {
 public:
  // Sizes are at least 1 and dtype is one of DType: checked by kernels/linear.py. `mapped` holds
  // packed weights, or is None.
  PackedLinear(int64_t in_features, int64_t out_features, int dtype, nb::handle mapped)
      : weights_{in_features, out_features, static_cast<DType>(dtype), nullptr, nullptr},
        memory_(static_cast<size_t>(weights_.bytes()), mapped) {
    weights_.data = memory_.data();
  }

  void pack(nb::handle source, int dtype, int64_t first_row, int64_t num_rows) {
    if (first_row < 0 || num_rows < 0 || first_row + num_rows > weights_.out_features)
      throw std::invalid_argument("[linear] rows must lie inside the outputs.");
    memory_.check_writable();
    const size_t size = static_cast<DType>(dtype) == DType::float32 ? 4 : 2;
    const Buffer buffer(source, static_cast<size_t>(num_rows * weights_.in_features) * size, false);
    nb::gil_scoped_release release;
    kernels().pack_linear(weights_, buffer.data(), static_cast<DType>(dtype), first_row, num_rows);
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
    kernels().linear(weights_, call.x(), num_rows, call.out(), columns);
  }

  void lookup(nb::handle ids, int64_t num_ids, nb::handle out) const {
    const LookupCall call(weights_.in_features, weights_.out_features, ids, num_ids, out);
    const GilRelease release(num_ids * weights_.in_features * 16);
    kernels().lookup_rows(weights_, call.ids(), num_ids, call.out());
  }

  ExpertMatrix matrix() const override { return {&weights_, nullptr, 0}; }
  void copy_to(nb::handle out) const { memory_.copy_to(out); }

  size_t packed_bytes() const { return memory_.bytes(); }
  size_t nbytes() const { return memory_.bytes() + (bias_ ? bias_->bytes() : 0); }

 private:
  LinearWeights weights_;
  PackedMemory memory_;
  std::unique_ptr<AlignedMemory> bias_;
};

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<Packed>(m, "Packed");
  nb::class_<PackedLinear, Packed>(m, "PackedLinear")
      .def(nb::init<int64_t, int64_t, int, nb::handle>(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg().none())
      .def("pack", &PackedLinear::pack)
      .def("set_bias", &PackedLinear::set_bias)
      .def("multiply", &PackedLinear::multiply)
      .def("lookup", &PackedLinear::lookup)
      .def("copy_to", &PackedLinear::copy_to)
      .def_prop_ro("packed_bytes", &PackedLinear::packed_bytes)
      .def_prop_ro("nbytes", &PackedLinear::nbytes);
}

}  // namespace quire
