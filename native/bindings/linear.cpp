// Python: packed weights, and those of floats.
#include "bindings/packed_weights.h"

namespace quire {
namespace {

class PackedFloatWeights : public PackedWeights {
 public:
  // Sizes are at least 1 and dtype is one of DType: checked by kernels/linear.py. `mapped` holds
  // packed weights, or is None.
  PackedFloatWeights(int64_t in_features, int64_t out_features, int dtype, nb::handle mapped)
      : weights_{in_features, out_features, static_cast<DType>(dtype), nullptr, nullptr} {
    weights_.data = place(weights_.bytes(), mapped);
  }

  void pack(nb::handle source, int dtype, int64_t first_row, int64_t num_rows) {
    check_rows(first_row, num_rows);
    const size_t size = static_cast<DType>(dtype) == DType::float32 ? 4 : 2;
    const Buffer buffer(source, static_cast<size_t>(num_rows * weights_.in_features) * size, false);
    nb::gil_scoped_release release;
    kernels().pack_linear(weights_, buffer.data(), static_cast<DType>(dtype), first_row, num_rows);
  }

  ExpertMatrix matrix() const override { return {&weights_, nullptr, 0}; }

 private:
  void use_bias(const float* bias) override { weights_.bias = bias; }

  LinearWeights weights_;
};

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<PackedWeights>(m, "PackedWeights")
      .def("set_bias", &PackedWeights::set_bias)
      .def("multiply", &PackedWeights::multiply)
      .def("lookup", &PackedWeights::lookup)
      .def_prop_ro("data",
                   [](nb::handle_t<PackedWeights> self) {
                     return nb::cast<const PackedWeights&>(self).bytes(self);
                   })
      .def_prop_ro("nbytes", &PackedWeights::nbytes);
  nb::class_<PackedFloatWeights, PackedWeights>(m, "PackedFloatWeights")
      .def(nb::init<int64_t, int64_t, int, nb::handle>(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg().none())
      .def("pack", &PackedFloatWeights::pack);
}

}  // namespace quire
