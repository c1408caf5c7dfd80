// How a thread waits without sleeping, for what may come within a microsecond.
#pragma once

#include <chrono>

namespace quire {

inline void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");  // `yield` does nothing on most of these processors
#endif
}

// Return whether `condition` came to hold within `limit`. Without sched_yield(), which gives a busy
// neighbour a whole turn of milliseconds.
template <class Condition>
bool spin_until(Condition condition, std::chrono::nanoseconds limit) {
  const auto begin = std::chrono::steady_clock::now();
  for (auto now = begin; now - begin < limit; now = std::chrono::steady_clock::now()) {
    for (int i = 0; i < 16; ++i) {
      if (condition()) return true;
      pause_core();
    }
  }
  return false;
}

}  // namespace quire
