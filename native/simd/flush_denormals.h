// While one of these lives, its thread rounds to nearest even and takes and leaves denormals as 0.
#pragma once

#include <cstdint>

namespace quire::QUIRE_ISA {

#if defined(__SSE__)
class FlushDenormals {
 public:
  FlushDenormals() {
    // All exceptions masked, to nearest even, flush to zero, denormals are zero.
    const uint32_t flushing = 0x9fc0;
    __asm__ volatile("stmxcsr %0\n\tldmxcsr %1" : "=m"(before_) : "m"(flushing) : "memory");
  }
  ~FlushDenormals() { __asm__ volatile("ldmxcsr %0" ::"m"(before_) : "memory"); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  uint32_t before_;
};
#endif

}  // namespace quire::QUIRE_ISA
