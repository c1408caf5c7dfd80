// Python: what producers of quantized weights do for every weight.
#include <stdexcept>

#include "bindings/binding.h"

namespace quire {
namespace {

// The arguments of both searches of vectors.
class SearchArguments {
 public:
  SearchArguments(nb::handle table, int64_t width, int64_t count, nb::handle x, nb::handle weights,
                  nb::handle flipped, int64_t num)
      : table_(table, width * count),
        x_(x, num * width),
        weights_(weights, num * width),
        flipped_(flipped, num),
        search_{table_, width, count, x_, weights_, flipped_, num} {
    if ((width != 4 && width != 8) || num < 0 || count < VectorSearch::chunk ||
        count % VectorSearch::chunk)
      throw std::invalid_argument(
          "[vector_search] width must be 4 or 8, and count a multiple of 256.");
  }
  const VectorSearch& get() const { return search_; }
  int64_t work() const { return search_.num * search_.count * search_.width; }

 private:
  Input<float> table_, x_, weights_;
  Input<uint8_t> flipped_;
  VectorSearch search_;
};

void vector_costs(nb::handle table, int64_t width, int64_t count, nb::handle x, nb::handle weights,
                  nb::handle flipped, int64_t num, nb::handle scales, int64_t num_scales,
                  nb::handle costs) {
  const SearchArguments arguments(table, width, count, x, weights, flipped, num);
  const Input<float> from(scales, num * num_scales);
  const Output<float> to(costs, num * num_scales);
  const GilRelease release(arguments.work());
  kernels().vector_costs(arguments.get(), from, num_scales, to);
}

void nearest_vectors(nb::handle table, int64_t width, int64_t count, nb::handle x,
                     nb::handle weights, nb::handle flipped, int64_t num, nb::handle scales,
                     nb::handle indices, nb::handle sums) {
  const SearchArguments arguments(table, width, count, x, weights, flipped, num);
  const Input<float> from(scales, num);
  const Output<int32_t> to(indices, num);
  const Output<float> sums_to(sums, 2 * num);
  const GilRelease release(arguments.work());
  kernels().nearest_vectors(arguments.get(), from, to, sums_to);
}

void round_columns(nb::handle left, nb::handle reach, nb::handle scales, nb::handle zeros,
                   float highest, int64_t rows, int64_t columns, nb::handle codes,
                   nb::handle errors) {
  if (rows < 0 || columns < 0 || columns > ColumnRounding::max_columns || !(highest <= 255.0f))
    throw std::invalid_argument("[round_columns] at most 128 columns, and codes of at most 255.");
  const Input<float> left_in(left, rows * columns), reach_in(reach, columns * columns);
  const Input<float> scales_in(scales, rows), zeros_in(zeros, rows);
  const Output<uint8_t> codes_out(codes, rows * columns);
  const Output<float> errors_out(errors, rows * columns);
  const GilRelease release(rows * columns * columns);
  kernels().round_columns(
      {left_in, reach_in, scales_in, zeros_in, highest, rows, columns, codes_out, errors_out});
}

}  // namespace

void bind_quantizing(nb::module_& m) {
  m.def("vector_costs", vector_costs);
  m.def("nearest_vectors", nearest_vectors);
  m.def("round_columns", round_columns);
}

}  // namespace quire
