// What the bindings of linears share: the arrays of one call, checked, and the bias.
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "bindings/binding.h"
#include "runtime/memory.h"

namespace quire {

// The arrays of one product: x (num_rows, in_features) and columns column .. column + out_features
// - 1 of out (num_rows, columns). Needs the GIL at both ends.
class LinearCall {
 public:
  LinearCall(int64_t in_features, int64_t out_features, nb::handle x, int64_t num_rows,
             nb::handle out, int64_t column, int64_t columns)
      : input_(x, static_cast<size_t>(num_rows * in_features) * sizeof(float), false),
        output_(out, num_rows * columns),
        column_(column) {
    if (input_.bytes() != static_cast<size_t>(num_rows * in_features) * sizeof(float))
      throw std::invalid_argument("[linear] x must be float32 with in_features columns.");
    if (column < 0 || column + out_features > columns)
      throw std::invalid_argument("[linear] the outputs must lie inside the columns of out.");
  }
  const float* x() const { return static_cast<const float*>(input_.data()); }
  float* out() const { return static_cast<float*>(output_) + column_; }

 private:
  Buffer input_;
  Output<float> output_;
  int64_t column_;
};

inline bool ids_inside(const int32_t* ids, int64_t num_ids, int64_t bound) {
  return std::all_of(ids, ids + num_ids, [=](int32_t id) { return id >= 0 && id < bound; });
}

// Rows ids (num_ids,), all below out_features, to out (num_ids, in_features).
class LookupCall {
 public:
  LookupCall(int64_t in_features, int64_t out_features, nb::handle ids, int64_t num_ids,
             nb::handle out)
      : ids_(ids, num_ids), out_(out, num_ids * in_features) {
    if (!ids_inside(ids_, num_ids, out_features))
      throw std::invalid_argument("[lookup] ids must lie inside the table.");
  }
  const int32_t* ids() const { return ids_.get(); }
  float* out() const { return out_.get(); }

 private:
  Input<int32_t> ids_;
  Output<float> out_;
};

inline std::unique_ptr<AlignedMemory> copy_bias(nb::handle bias, int64_t out_features) {
  const Input<float> values(bias, out_features);
  const size_t bytes = static_cast<size_t>(out_features) * sizeof(float);
  auto memory = std::make_unique<AlignedMemory>(bytes);
  std::memcpy(memory->data(), values, bytes);
  return memory;
}

}  // namespace quire
