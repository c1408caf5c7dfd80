// Where memory lies on a machine with several memory nodes, such as one with two sockets.
#pragma once

#include <cstddef>
#include <vector>

namespace quire {

// Nodes whose memory this process may use; 1 where the system does not tell.
int num_memory_nodes();

// Spread over these nodes alone from now on, over all where none of them may be used. Not while
// other threads spread.
void use_memory_nodes(const std::vector<int>& numbers);

// Spread pages that were not touched yet over these nodes. False where the system refuses.
bool spread_over_nodes(void* data, size_t bytes);

// The same for memory that all threads read, where there is more than one node: else the node of
// the thread that wrote it would serve all threads. Small memory stays as it is.
inline void interleave(void* data, size_t bytes) {
  constexpr size_t worth_it = size_t{2} << 20;
  if (bytes >= worth_it && num_memory_nodes() > 1) (void)spread_over_nodes(data, bytes);
}

}  // namespace quire
