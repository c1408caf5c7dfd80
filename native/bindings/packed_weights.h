// What weights of every kind are to Python: packed memory and a bias, multiplied and looked up.
#pragma once

#include <nanobind/ndarray.h>

#include <memory>
#include <stdexcept>

#include "bindings/linear_call.h"
#include "runtime/experts.h"
#include "runtime/nodes.h"

namespace quire {

// What is stored of packed weights, in include/linear.h and include/quantized.h. Files of packed
// weights name it: raise it when a byte of a layout changes.
constexpr int packed_weights_version = 2;

// In memory of their own, or in a Python buffer such as a mapped file, which is only read. Needs
// the GIL at both ends.
class PackedWeights {
 public:
  using Bytes = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;

  virtual ~PackedWeights() = default;
  // Valid as long as this; columns from 0.
  virtual ExpertMatrix matrix() const = 0;

  void set_bias(nb::handle bias) {
    bias_ = copy_bias(bias, matrix().out_features());
    use_bias(static_cast<const float*>(bias_->data()));
  }

  void multiply(nb::handle x, int64_t num_rows, nb::handle out, int64_t column,
                int64_t columns) const {
    const ExpertMatrix weights = matrix();
    const int64_t inputs = weights.in_features(), outputs = weights.out_features();
    const LinearCall call(inputs, outputs, x, num_rows, out, column, columns);
    hold_this();
    make_call(num_rows * inputs * outputs / 8, [=, from = call.x(), to = call.out()] {
      if (weights.floats)
        kernels().linear(*weights.floats, from, num_rows, to, columns);
      else
        kernels().linear_quantized(*weights.quantized, from, num_rows, to, columns);
      return true;
    });
  }

  void lookup(nb::handle ids, int64_t num_ids, nb::handle out) const {
    const ExpertMatrix weights = matrix();
    if (weights.quantized && weights.quantized->is_rotated())
      throw std::invalid_argument("[lookup] a table must not be rotated.");
    const LookupCall call(weights.in_features(), weights.out_features(), ids, num_ids, out);
    const auto lookup = [=, rows = call.ids(), to = call.out()] {
      if (weights.floats)
        kernels().lookup_rows(*weights.floats, rows, num_ids, to);
      else
        kernels().lookup_quantized(*weights.quantized, rows, num_ids, to);
      return true;
    };
    hold_this();
    make_call(num_ids * weights.in_features() * (weights.floats ? 16 : 32), lookup,
              [=, rows = call.ids(), bound = weights.out_features()] {
                return ids_inside(rows, num_ids, bound) && lookup();
              });
  }

  Bytes bytes(nb::handle owner) const { return Bytes(data_, {bytes_}, owner); }
  size_t nbytes() const { return bytes_ + (bias_ ? bias_->bytes() : 0); }

 protected:
  // Returns the memory of the weights; `mapped` is None for memory of their own.
  char* place(int64_t bytes, nb::handle mapped) {
    bytes_ = static_cast<size_t>(bytes);
    if (mapped.is_none()) {
      own_ = std::make_unique<AlignedMemory>(bytes_);
      interleave(own_->data(), bytes_);
      return data_ = static_cast<char*>(own_->data());
    }
    buffer_ = std::make_unique<Buffer>(mapped, bytes_, false);
    if (buffer_->bytes() != bytes_ || reinterpret_cast<uintptr_t>(buffer_->data()) % 64)
      throw std::invalid_argument("[linear] mapped weights must have their size, aligned to 64.");
    return data_ = static_cast<char*>(buffer_->data());
  }

  void check_rows(int64_t first_row, int64_t num_rows) const {
    if (first_row < 0 || num_rows < 0 || first_row + num_rows > matrix().out_features())
      throw std::invalid_argument("[linear] rows must lie inside the outputs.");
    if (!own_) throw std::invalid_argument("[linear] mapped weights must not be packed again.");
  }

  virtual void use_bias(const float* bias) = 0;

 private:
  void hold_this() const {
    if (Recording* recording = Recording::open()) recording->hold(nb::find(*this));
  }

  size_t bytes_ = 0;
  char* data_ = nullptr;
  std::unique_ptr<AlignedMemory> own_, bias_;
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace quire
