// Where packed weights lie: memory of their own, or a Python buffer such as a mapped file.
#pragma once

#include <cstring>
#include <memory>
#include <stdexcept>

#include "bindings/binding.h"
#include "runtime/memory.h"

namespace quire {

// What is stored of packed weights, in include/linear.h and include/quantized.h. Files of packed
// weights name it: raise it when a byte of a layout changes.
constexpr int packed_layout_version = 1;

// Weights in a buffer are only read. Needs the GIL at both ends.
class PackedMemory {
 public:
  // `mapped` is None for memory of its own.
  PackedMemory(size_t bytes, nb::handle mapped) : bytes_(bytes) {
    if (mapped.is_none()) {
      own_ = std::make_unique<AlignedMemory>(bytes);
      return;
    }
    buffer_ = std::make_unique<Buffer>(mapped, bytes, false);
    if (buffer_->bytes() != bytes || reinterpret_cast<uintptr_t>(buffer_->data()) % 64)
      throw std::invalid_argument("[linear] mapped weights must have their size, aligned to 64.");
  }

  char* data() const { return static_cast<char*>(own_ ? own_->data() : buffer_->data()); }
  size_t bytes() const { return bytes_; }

  void check_writable() const {
    if (!own_) throw std::invalid_argument("[linear] mapped weights must not be packed again.");
  }

  // Copy all bytes to a writable buffer of their size.
  void copy_to(nb::handle out) const {
    const Buffer target(out, bytes_, true);
    nb::gil_scoped_release release;
    std::memcpy(target.data(), data(), bytes_);
  }

 private:
  size_t bytes_;
  std::unique_ptr<AlignedMemory> own_;
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace quire
