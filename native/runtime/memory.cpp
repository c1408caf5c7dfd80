#include "runtime/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <new>

namespace quire {
namespace {

constexpr size_t huge_page = size_t{2} << 20;

size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

}  // namespace

AlignedMemory::AlignedMemory(size_t bytes) : bytes_(bytes) {
  const bool large = bytes >= huge_page;
  mapped_ = round_up(bytes ? bytes : 1, 4096) + (large ? huge_page : 0);
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  data_ = mapping_;
  if (!large) return;
  data_ = reinterpret_cast<void*>(round_up(reinterpret_cast<uintptr_t>(mapping_), huge_page));
  // Only advice: without huge pages everything works, with more TLB misses.
  (void)madvise(data_, round_up(bytes, 4096), MADV_HUGEPAGE);
}

AlignedMemory::~AlignedMemory() { munmap(mapping_, mapped_); }

void* scratch(Slot slot, size_t bytes) {
  thread_local std::unique_ptr<AlignedMemory> memory[static_cast<int>(Slot::count)];
  auto& mine = memory[static_cast<int>(slot)];
  if (!mine || mine->bytes() < bytes) {
    const size_t grown = mine ? mine->bytes() + mine->bytes() / 2 : size_t{64} << 10;
    mine.reset();  // before allocating: the old contents are not needed
    mine = std::make_unique<AlignedMemory>(round_up(bytes > grown ? bytes : grown, 4096));
  }
  return mine->data();
}

}  // namespace quire
