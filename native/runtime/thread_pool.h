// The process's pool of compute threads. The caller is one of them and claims chunks like the rest.
#pragma once

#include <cstdint>

namespace quire {

// Use `num_threads` compute threads (the caller included) from now on; at least 1. Waits for
// running work.
void set_num_threads(int num_threads);
int num_threads();

// Jobs that the pool has run so far: each ends in a barrier. What one thread runs alone is none.
uint64_t num_jobs();

// How many chunks a thread takes at a time: one, or a run of neighbours, fewer the less are left
// (guided self-scheduling: Polychronopoulos and Kuck, 1987). Runs are for chunks of equal work that
// lie next to each other in memory, which a core reads fastest in one stream.
enum class Claim { one, run };

// Run call(context, chunk) for chunk = 0 .. num_chunks - 1, in no particular order, and return when
// all are done. Calls from several threads take turns. Called from inside a chunk, or with one
// chunk, it runs on the calling thread alone.
void run_chunks(int64_t num_chunks, Claim claim, void (*call)(const void* context, int64_t chunk),
                const void* context);

// Elements that are worth a chunk where each takes a few instructions.
constexpr int64_t chunk_elements = 16384;

// body(chunk) for every chunk. Needs a lambda of the calling file, so that the instance is not
// shared between instruction sets.
template <class Body>
void parallel_for(int64_t num_chunks, const Body& body, Claim claim = Claim::one) {
  run_chunks(
      num_chunks, claim,
      [](const void* context, int64_t chunk) { (*static_cast<const Body*>(context))(chunk); },
      &body);
}

}  // namespace quire
