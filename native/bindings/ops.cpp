// Python: ops on rows that own nothing: norms, activations, row picking, experts.
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "bindings/binding.h"

namespace quire {
namespace {

// Elements weighed by what they cost, so that rows of some size let other threads run.
constexpr int64_t cost = 4;

// Rows that are written, or None.
class OptionalRows {
 public:
  OptionalRows(nb::handle array, int64_t count) {
    if (!array.is_none()) rows_.emplace(array, count);
  }
  float* get() const { return rows_ ? rows_->get() : nullptr; }

 private:
  std::optional<Output<float>> rows_;
};

bool inside(const int32_t* rows, int64_t count, int64_t bound) {
  return std::all_of(rows, rows + count, [=](int32_t row) { return row >= 0 && row < bound; });
}

void rms_norm(nb::handle x, nb::handle residual, nb::handle weight, float eps, int64_t rows,
              int64_t columns, nb::handle out) {
  const Input<float> input(x, rows * columns), scale(weight, columns);
  const OptionalRows added(residual, rows * columns);
  const Output<float> output(out, rows * columns);
  make_call(rows * columns * cost,
            [=, x = input.get(), residual = added.get(), weight = scale.get(), out = output.get()] {
              kernels().rms_norm(x, residual, weight, eps, rows, columns, out);
              return true;
            });
}

void layer_norm(nb::handle x, nb::handle residual, nb::handle weight, nb::handle bias, float eps,
                int64_t rows, int64_t columns, nb::handle out) {
  const Input<float> input(x, rows * columns), scale(weight, columns), shift(bias, columns);
  const OptionalRows added(residual, rows * columns);
  const Output<float> output(out, rows * columns);
  make_call(rows * columns * cost, [=, x = input.get(), residual = added.get(),
                                    weight = scale.get(), bias = shift.get(), out = output.get()] {
    kernels().layer_norm(x, residual, weight, bias, eps, rows, columns, out);
    return true;
  });
}

void scale(nb::handle x, float factor, int64_t n, nb::handle out) {
  const Input<float> input(x, n);
  const Output<float> output(out, n);
  make_call(n * cost, [=, x = input.get(), out = output.get()] {
    kernels().scale(x, factor, n, out);
    return true;
  });
}

void soft_cap(nb::handle x, float cap, int64_t n, nb::handle out) {
  const Input<float> input(x, n);
  const Output<float> output(out, n);
  make_call(n * cost, [=, x = input.get(), out = output.get()] {
    kernels().soft_cap(x, cap, n, out);
    return true;
  });
}

void add_residual(nb::handle x, int64_t n, nb::handle residual, nb::handle out) {
  const Input<float> input(x, n);
  const Output<float> total(residual, n);
  const OptionalRows copy(out, n);
  make_call(n * cost, [=, x = input.get(), residual = total.get(), out = copy.get()] {
    kernels().add_residual(x, n, residual, out);
    return true;
  });
}

void activation(nb::handle x, int which, int64_t rows, int64_t columns, nb::handle out) {
  const Input<float> input(x, rows * columns);
  const Output<float> output(out, rows * columns);
  make_call(rows * columns * cost, [=, x = input.get(), out = output.get()] {
    kernels().activation(x, static_cast<Activation>(which), rows, columns, out);
    return true;
  });
}

void gated_activation(nb::handle x, int which, int64_t rows, int64_t columns, nb::handle out) {
  const Input<float> input(x, 2 * rows * columns);
  const Output<float> output(out, rows * columns);
  make_call(rows * columns * cost, [=, x = input.get(), out = output.get()] {
    kernels().gated_activation(x, static_cast<Activation>(which), rows, columns, out);
    return true;
  });
}

// False, and nothing done, when a row is outside the table; gather_rows the same.
bool add_rows(nb::handle x, nb::handle table, int64_t table_rows, nb::handle rows, int64_t count,
              int64_t columns) {
  const Output<float> output(x, count * columns);
  const Input<float> added(table, table_rows * columns);
  const Input<int32_t> index(rows, count);
  return make_call(0, [=, x = output.get(), table = added.get(), rows = index.get()] {
    if (!inside(rows, count, table_rows)) return false;
    kernels().add_rows(x, table, rows, count, columns);
    return true;
  });
}

bool gather_rows(nb::handle x, int64_t x_rows, nb::handle rows, int64_t count, int64_t columns,
                 nb::handle out) {
  const Input<float> input(x, x_rows * columns);
  const Input<int32_t> index(rows, count);
  const Output<float> output(out, count * columns);
  return make_call(count * columns, [=, x = input.get(), rows = index.get(), out = output.get()] {
    if (!inside(rows, count, x_rows)) return false;
    kernels().gather_rows(x, rows, count, columns, out);
    return true;
  });
}

// False, and nothing done, when a column is outside the result.
bool spread_columns(nb::handle x, nb::handle columns, int64_t rows, int64_t count, int64_t width,
                    nb::handle out) {
  const Input<float> input(x, rows * count);
  const Input<int32_t> index(columns, count);
  const Output<float> output(out, rows * width);
  return make_call(rows * width, [=, x = input.get(), columns = index.get(), out = output.get()] {
    if (!inside(columns, count, width)) return false;
    kernels().spread_columns(x, columns, rows, count, width, out);
    return true;
  });
}

// groups: how many there are, how many are kept, how many of its best a group counts as.
void route(nb::handle logits, int64_t rows, int64_t num_experts, int64_t top_k, int which,
           nb::handle bias, std::tuple<int64_t, int64_t, int64_t> groups, bool renormalize,
           float scale, nb::handle ids, nb::handle weights) {
  const auto [num_groups, top_groups, group_best] = groups;
  const Input<float> input(logits, rows * num_experts);
  std::optional<Input<float>> added;
  if (!bias.is_none()) added.emplace(bias, num_experts);
  const Output<int32_t> experts(ids, rows * top_k);
  const Output<float> shares(weights, rows * top_k);
  if (num_groups < 1 || num_experts % num_groups || top_groups < 1 || top_groups > num_groups)
    throw std::invalid_argument(
        "[route] groups must be as large as each other, some of them kept.");
  if (top_k < 1 || top_k > num_experts / num_groups * top_groups)
    throw std::invalid_argument("[route] top_k must be in 1..the experts of the kept groups.");
  const auto scores = static_cast<RouteScores>(which);
  kernels().route(input, rows,
                  {num_experts, top_k, scores, added ? added->get() : nullptr, num_groups,
                   top_groups, group_best, renormalize, scale},
                  experts, shares);
}

void add_gated_rows(nb::handle x, nb::handle gate, int64_t rows, int64_t columns, nb::handle out) {
  const Input<float> input(x, rows * columns), shares(gate, rows);
  const Output<float> output(out, rows * columns);
  make_call(rows * columns * cost, [=, x = input.get(), gate = shares.get(), out = output.get()] {
    kernels().add_gated_rows(x, gate, rows, columns, out);
    return true;
  });
}

void scale_rows(nb::handle x, nb::handle scales, int64_t rows, int64_t columns, nb::handle out) {
  const Input<float> input(x, rows * columns), factors(scales, rows);
  const Output<float> output(out, rows * columns);
  make_call(rows * columns * cost,
            [=, x = input.get(), scales = factors.get(), out = output.get()] {
              kernels().scale_rows(x, scales, rows, columns, out);
              return true;
            });
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
  m.def("scale", scale);
  m.def("soft_cap", soft_cap);
  m.def("add_residual", add_residual, nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
  m.def("rms_norm", rms_norm, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg());
  m.def("layer_norm", layer_norm, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg());
  m.def("activation", activation);
  m.def("gated_activation", gated_activation);
  m.def("add_rows", add_rows);
  m.def("gather_rows", gather_rows);
  m.def("spread_columns", spread_columns);
  m.def("route", route, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
  m.def("add_gated_rows", add_gated_rows);
  m.def("scale_rows", scale_rows);
  m.def("combine_experts", combine_experts);
}

}  // namespace quire
