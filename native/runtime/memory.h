// Aligned memory: long-lived blocks on huge pages, and per-thread scratch.
#pragma once

#include <cstddef>

namespace quire {

// Owns `bytes` of zeroed memory, aligned to 64 bytes; to 2 MiB and advised to use huge pages when
// that large. Throws std::bad_alloc.
class AlignedMemory {
 public:
  explicit AlignedMemory(size_t bytes);
  ~AlignedMemory();
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* mapping_;
  size_t mapped_;
  void* data_;
  size_t bytes_;
};

// Who uses a thread's scratch; two slots never overlap, so nested uses take different ones.
enum class Slot {
  activations,
  latents,
  packing,
  partial,
  rotated,
  rotation,
  rounded,
  weights,
  count
};

// The calling thread's memory of `slot`: at least `bytes`, 64-byte aligned, contents arbitrary,
// valid until the thread's next call with the same slot. Grows, never shrinks.
void* scratch(Slot slot, size_t bytes);

}  // namespace quire
