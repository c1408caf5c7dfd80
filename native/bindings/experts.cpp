// Python: the experts of a mixture-of-experts layer as one object.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings/binding.h"
#include "bindings/packed_weights.h"

namespace quire {
namespace {

// By expert, packed weights with their first columns.
using Stacks = std::vector<std::vector<std::pair<nb::object, int64_t>>>;

// Matrices of experts. Each expert's must cover the columns, side by side. The objects that hold
// them are added to `kept`.
ExpertProducts products(const Stacks& stacks, int64_t in_features, int64_t out_features,
                        std::vector<nb::object>& kept) {
  ExpertProducts found;
  for (const auto& expert : stacks) {
    int64_t column = 0;
    found.emplace_back();
    for (const auto& [object, first] : expert) {
      ExpertMatrix matrix = nb::cast<const PackedWeights&>(object).matrix();
      if (matrix.quantized && matrix.quantized->is_rotated())
        throw std::invalid_argument("[experts] matrices must not be rotated.");
      if (matrix.in_features() != in_features || first != column)
        throw std::invalid_argument("[experts] matrices must lie side by side on one input.");
      matrix.first_column = column;
      column += matrix.out_features();
      found.back().push_back(matrix);
      kept.push_back(object);
    }
    if (column != out_features)
      throw std::invalid_argument("[experts] matrices must cover all columns.");
  }
  return found;
}

class Experts {
 public:
  Experts(int64_t width, int64_t middle, int activation, const Stacks& gate_up, const Stacks& down)
      : stack_{width, middle, static_cast<Activation>(activation), {}, {}} {
    if (gate_up.empty() || gate_up.size() != down.size())
      throw std::invalid_argument("[experts] there must be as many of either product, at least 1.");
    stack_.gate_up = products(gate_up, width, 2 * middle, kept_);
    stack_.down = products(down, middle, width, kept_);
  }

  // False, and nothing done, when an id is outside the experts.
  bool run(nb::handle x, nb::handle ids, nb::handle weights, int64_t num_rows, int64_t top_k,
           nb::handle grouped, nb::handle hidden, nb::handle activated, nb::handle out) const {
    const int64_t count = num_rows * top_k;
    const Input<float> rows(x, num_rows * stack_.width), shares(weights, count);
    const Input<int32_t> experts(ids, count);
    const Output<float> inputs(grouped, count * stack_.width);
    const Output<float> wide(hidden, 2 * count * stack_.middle);
    const Output<float> narrow(activated, count * stack_.middle);
    const Output<float> output(out, num_rows * stack_.width);
    if (!are_inside(experts, count)) return false;
    const GilRelease release(work(count));
    run_experts(stack_, {rows, experts, shares, num_rows, top_k}, {inputs, wide, narrow}, output);
    return true;
  }

  // The same in parts; see runtime/experts.h.
  bool gate_up(nb::handle x, nb::handle ids, int64_t num_rows, int64_t top_k, nb::handle grouped,
               nb::handle hidden, nb::handle places) const {
    const int64_t count = num_rows * top_k;
    const Input<float> rows(x, num_rows * stack_.width);
    const Input<int32_t> experts(ids, count);
    const Output<float> inputs(grouped, count * stack_.width);
    const Output<float> wide(hidden, 2 * count * stack_.middle);
    const Output<int32_t> found(places, count);
    if (!are_inside(experts, count)) return false;
    const GilRelease release(work(count));
    multiply_gate_up(stack_, {rows, experts, nullptr, num_rows, top_k}, {inputs, wide, nullptr},
                     found);
    return true;
  }

  bool down(nb::handle ids, int64_t num_rows, int64_t top_k, nb::handle hidden,
            nb::handle activated, nb::handle grouped) const {
    const int64_t count = num_rows * top_k;
    const Input<int32_t> experts(ids, count);
    const Output<float> wide(hidden, 2 * count * stack_.middle);
    const Output<float> narrow(activated, count * stack_.middle);
    const Output<float> outputs(grouped, count * stack_.width);
    if (!are_inside(experts, count)) return false;
    const GilRelease release(work(count));
    multiply_down(stack_, {nullptr, experts, nullptr, num_rows, top_k}, {outputs, wide, narrow});
    return true;
  }

  bool combine(nb::handle ids, nb::handle weights, int64_t num_rows, int64_t top_k,
               nb::handle grouped, nb::handle out) const {
    const int64_t count = num_rows * top_k;
    const Input<int32_t> experts(ids, count);
    const Input<float> shares(weights, count), outputs(grouped, count * stack_.width);
    const Output<float> output(out, num_rows * stack_.width);
    if (!are_inside(experts, count)) return false;
    const GilRelease release(count * stack_.width);
    combine_rows(stack_, {nullptr, experts, shares, num_rows, top_k}, outputs, output);
    return true;
  }

 private:
  bool are_inside(const int32_t* ids, int64_t count) const {
    const auto bound = static_cast<int32_t>(stack_.down.size());
    return std::all_of(ids, ids + count, [=](int32_t e) { return e >= 0 && e < bound; });
  }

  int64_t work(int64_t count) const { return count * stack_.width * stack_.middle / 4; }

  ExpertStack stack_;
  std::vector<nb::object> kept_;
};

// One matrix of each expert, for rows that are sorted by expert.
class GroupedLinear {
 public:
  GroupedLinear(int64_t in_features, int64_t out_features, const Stacks& experts)
      : in_features_(in_features),
        out_features_(out_features),
        products_(products(experts, in_features, out_features, kept_)) {}

  void multiply(nb::handle x, const std::vector<int64_t>& starts, int64_t num_rows,
                nb::handle out) const {
    const Input<float> rows(x, num_rows * in_features_);
    const Output<float> output(out, num_rows * out_features_);
    if (starts.size() != products_.size() + 1 || starts.front() != 0 || starts.back() != num_rows ||
        !std::is_sorted(starts.begin(), starts.end()))
      throw std::invalid_argument("[grouped_linear] starts must go up from 0 to the rows.");
    const GilRelease release(num_rows * in_features_ * out_features_ / 4);
    multiply_grouped(products_, starts, rows, output, out_features_);
  }

 private:
  int64_t in_features_, out_features_;
  std::vector<nb::object> kept_;
  ExpertProducts products_;
};

}  // namespace

void bind_experts(nb::module_& m) {
  nb::class_<Experts>(m, "Experts")
      .def(nb::init<int64_t, int64_t, int, const Stacks&, const Stacks&>())
      .def("run", &Experts::run)
      .def("gate_up", &Experts::gate_up)
      .def("down", &Experts::down)
      .def("combine", &Experts::combine);
  nb::class_<GroupedLinear>(m, "GroupedLinear")
      .def(nb::init<int64_t, int64_t, const Stacks&>())
      .def("multiply", &GroupedLinear::multiply);
}

}  // namespace quire
