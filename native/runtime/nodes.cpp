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

Nodes read_nodes() {
  Nodes found;
  if (syscall(SYS_get_mempolicy, nullptr, found.bits, max_nodes, nullptr, of_allowed_nodes))
    return Nodes{};
  for (const unsigned long word : found.bits) found.count += __builtin_popcountl(word);
  return found;
}

Nodes& allowed_nodes() {
  static Nodes nodes = read_nodes();
  return nodes;
}

}  // namespace

void use_memory_nodes(const std::vector<int>& numbers) {
  const Nodes all = read_nodes();
  Nodes found;
  for (const int number : numbers) {
    if (number < 0 || number >= max_nodes) continue;
    const auto place = static_cast<size_t>(number) / word_bits;
    const unsigned long bit = 1UL << (static_cast<size_t>(number) % word_bits);
    if (!(all.bits[place] & bit) || found.bits[place] & bit) continue;
    found.bits[place] |= bit;
    ++found.count;
  }
  allowed_nodes() = found.count ? found : all;
}

int num_memory_nodes() { return allowed_nodes().count > 1 ? allowed_nodes().count : 1; }

bool spread_over_nodes(void* data, size_t bytes) {
  const Nodes& nodes = allowed_nodes();
  const auto begin = reinterpret_cast<uintptr_t>(data) / 4096 * 4096;
  const size_t length = reinterpret_cast<uintptr_t>(data) + bytes - begin;
  return nodes.count > 0 && syscall(SYS_mbind, reinterpret_cast<void*>(begin), length, interleaved,
                                    nodes.bits, max_nodes, 0) == 0;
}

}  // namespace quire
