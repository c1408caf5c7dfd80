// Bytes from one rank to others, in order, through a ring in a shared segment.
#pragma once

#include <utility>
#include <vector>

#include "runtime/shared_segment.h"

namespace quire {

using Piece = std::pair<const char*, size_t>;

// A rank's end. Every reader gets every message; one that is larger than the ring passes through.
//
//   [head | tail 0 | tail 1 | ... | capacity bytes, byte i at i % capacity]
//   head: bytes written; tail: bytes read by one reader; each on a cache line
class SharedStream {
 public:
  // `capacity` is a power of two. Throws std::invalid_argument.
  SharedStream(SharedSegment& segment, size_t offset, size_t capacity, int writer,
               std::vector<int> readers, int rank);

  static size_t bytes(size_t readers, size_t capacity) { return 64 * (1 + readers) + capacity; }

  // Send a message of the pieces, one after another. Waits while the ring is full.
  void write(const std::vector<Piece>& message, Rest& rest);

  // Wait for a message, as long as it takes where `patient`, and return its bytes; all of them are
  // to be read before the next one.
  uint64_t next(Rest& rest, bool patient);
  void read(char* to, size_t bytes, Rest& rest);

 private:
  void put(const char* from, size_t bytes, Rest& rest);
  void take(char* to, size_t bytes, Rest& rest, bool patient);

  SharedSegment& segment_;
  struct alignas(64) Place {
    Counter bytes;
  };

  Place* head_;
  Place* tails_;
  char* data_;
  uint32_t capacity_;
  int writer_;
  std::vector<int> readers_;
  Place* tail_ = nullptr;  // of this rank, where it reads
  uint32_t at_;            // this rank's own position, published or not
  uint32_t published_;
};

}  // namespace quire
