// Python: ops on rows that own nothing: norms, activations, row picking, experts.
#include <algorithm>
#include <optional>
#include <stdexcept>

#include "bindings/binding.h"

namespace quire {
namespace {

// Elements weighed by what they cost, so that rows of some size let other threads run.
constexpr int64_t cost = 4;

class Residual {
 public:
  Residual(nb::handle array, int64_t count) {
    if (!array.is_none()) rows_.emplace(array, count);
  }
  operator float*() const { return rows_ ? static_cast<float*>(*rows_) : nullptr; }

 private:
  std::optional<Output<float>> rows_;
};

bool inside(const int32_t* rows, int64_t count, int64_t bound) {
  return std::all_of(rows, rows + count, [=](int32_t row) { return row >= 0 && row < bound; });
}

void rms_norm(nb::handle x, nb::handle residual, nb::handle weight, float eps, int64_t rows,
              int64_t columns, nb::handle out) {
  const Input<float> input(x, rows * columns), scale(weight, columns);
  const Residual added(residual, rows * columns);
  const Output<float> output(out, rows * columns);
  const GilRelease release(rows * columns * cost);
  kernels().rms_norm(input, added, scale, eps, rows, columns, output);
}

void layer_norm(nb::handle x, nb::handle residual, nb::handle weight, nb::handle bias, float eps,
                int64_t rows, int64_t columns, nb::handle out) {
  const Input<float> input(x, rows * columns), scale(weight, columns), shift(bias, columns);
  const Residual added(residual, rows * columns);
  const Output<float> output(out, rows * columns);
  const GilRelease release(rows * columns * cost);
  kernels().layer_norm(input, added, scale, shift, eps, rows, columns, output);
}

void activation(nb::handle x, int which, int64_t rows, int64_t columns, nb::handle out) {
  const Input<float> input(x, rows * columns);
  const Output<float> output(out, rows * columns);
  const GilRelease release(rows * columns * cost);
  kernels().activation(input, static_cast<Activation>(which), rows, columns, output);
}

void gated_activation(nb::handle x, int which, int64_t rows, int64_t columns, nb::handle out) {
  const Input<float> input(x, 2 * rows * columns);
  const Output<float> output(out, rows * columns);
  const GilRelease release(rows * columns * cost);
  kernels().gated_activation(input, static_cast<Activation>(which), rows, columns, output);
}

// False, and nothing done, when a row is outside the table; gather_rows the same.
bool add_rows(nb::handle x, nb::handle table, int64_t table_rows, nb::handle rows, int64_t count,
              int64_t columns) {
  const Output<float> output(x, count * columns);
  const Input<float> added(table, table_rows * columns);
  const Input<int32_t> index(rows, count);
  if (!inside(index, count, table_rows)) return false;
  kernels().add_rows(output, added, index, count, columns);
  return true;
}

bool gather_rows(nb::handle x, int64_t x_rows, nb::handle rows, int64_t count, int64_t columns,
                 nb::handle out) {
  const Input<float> input(x, x_rows * columns);
  const Input<int32_t> index(rows, count);
  const Output<float> output(out, count * columns);
  if (!inside(index, count, x_rows)) return false;
  const GilRelease release(count * columns);
  kernels().gather_rows(input, index, count, columns, output);
  return true;
}

void route(nb::handle logits, int64_t rows, int64_t num_experts, int64_t top_k, bool renormalize,
           nb::handle ids, nb::handle weights) {
  const Input<float> input(logits, rows * num_experts);
  const Output<int32_t> experts(ids, rows * top_k);
  const Output<float> shares(weights, rows * top_k);
  if (top_k < 1 || top_k > num_experts)
    throw std::invalid_argument("[route] top_k must be in 1..num_experts.");
  kernels().route(input, rows, num_experts, top_k, renormalize, experts, shares);
}

void combine_experts(nb::handle y, nb::handle index, nb::handle weights, int64_t rows,
                     int64_t top_k, int64_t columns, nb::handle out) {
  const Input<float> input(y, rows * top_k * columns), shares(weights, rows * top_k);
  const Input<int32_t> at(index, rows * top_k);
  const Output<float> output(out, rows * columns);
  if (!inside(at, rows * top_k, rows * top_k))
    throw std::invalid_argument("[combine_experts] index must lie inside y.");
  const GilRelease release(rows * top_k * columns);
  kernels().combine_experts(input, at, shares, rows, top_k, columns, output);
}

}  // namespace

void bind_ops(nb::module_& m) {
  m.def("rms_norm", rms_norm, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg());
  m.def("layer_norm", layer_norm, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg());
  m.def("activation", activation);
  m.def("gated_activation", gated_activation);
  m.def("add_rows", add_rows);
  m.def("gather_rows", gather_rows);
  m.def("route", route);
  m.def("combine_experts", combine_experts);
}

}  // namespace quire
