#include "runtime/nodes.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace quire {
namespace {

// Of linux/mempolicy.h, which comes with libnuma's headers only on some systems.
constexpr int interleaved = 3, of_allowed_nodes = 1 << 2;
constexpr int max_nodes = 1024, word_bits = 8 * sizeof(unsigned long);

struct Nodes {
  unsigned long bits[max_nodes / word_bits] = {};
  int count = 0;
};

const Nodes& allowed_nodes() {
  static const Nodes nodes = [] {
    Nodes found;
    if (syscall(SYS_get_mempolicy, nullptr, found.bits, max_nodes, nullptr, of_allowed_nodes))
      return Nodes{};
    for (const unsigned long word : found.bits) found.count += __builtin_popcountl(word);
    return found;
  }();
  return nodes;
}

}  // namespace

int num_memory_nodes() { return allowed_nodes().count > 1 ? allowed_nodes().count : 1; }

bool spread_over_nodes(void* data, size_t bytes) {
  const Nodes& nodes = allowed_nodes();
  const auto begin = reinterpret_cast<uintptr_t>(data) / 4096 * 4096;
  const size_t length = reinterpret_cast<uintptr_t>(data) + bytes - begin;
  return nodes.count > 0 && syscall(SYS_mbind, reinterpret_cast<void*>(begin), length, interleaved,
                                    nodes.bits, max_nodes, 0) == 0;
}

}  // namespace quire
