// Collectives of ranks that have a shared segment; quire/distributed/group.py defines them.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "runtime/shared_segment.h"

namespace quire {

// Ranks of a group made different calls: an error of the program.
class CallsDiffer : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// A rank's part of a group. A call is one round or more, and in round e every rank
//
//   waits until all have come to round e - 1: they have read what lies in the half e % 2
//   puts its part into that half of its own area
//   raises its counter to e
//   waits until those have come to round e whose parts it needs, and reads them there
//
// so that one wait a round is all there is: the first one is over when it begins.
class SharedGroup {
 public:
  // `members` are ranks of the segment, `rank` an index into them. Throws std::invalid_argument.
  SharedGroup(SharedSegment& segment, size_t offset, size_t area_bytes, std::vector<int> members,
              int rank);

  static size_t bytes(size_t ranks, size_t area_bytes) { return ranks * (64 + 2 * area_bytes); }

  void all_reduce(float* x, int64_t count, Rest& rest);
  // Each rank has `rows` of widths[rank] bytes; `out` gets them side by side. With a root of at
  // least 0 that rank alone has one.
  void gather(const char* part, const std::vector<size_t>& widths, size_t rows, char* out, int root,
              Rest& rest);
  struct Array {
    char* data;
    size_t bytes;
  };
  void all_to_all(const std::vector<Array>& parts, const std::vector<Array>& out, Rest& rest);
  bool any(bool flag, Rest& rest);

 private:
  enum class Call : uint32_t { all_reduce, gather, all_to_all, any };
  struct Note {
    Call call;
    uint32_t number;  // what the call tells all ranks
    uint64_t bytes;   // the same for all ranks
  };
  // On one cache line: what brings the counter brings the notes.
  struct alignas(64) Place {
    Counter rounds;
    Note notes[2];
  };

  size_t size() const { return members_.size(); }
  size_t me() const { return static_cast<size_t>(rank_); }
  Place& place(size_t rank) const { return *reinterpret_cast<Place*>(base_ + rank * stride_); }
  char* area(size_t rank) const { return base_ + rank * stride_ + 64 + (round_ & 1) * area_bytes_; }
  void reach(size_t rank, uint32_t round, Rest& rest);
  void begin(Call call, uint32_t number, uint64_t bytes, Rest& rest);
  void publish() { segment_.publish(place(me()).rounds, round_); }
  const Note& meet(size_t rank, Rest& rest);
  void meet_all(Rest& rest);

  SharedSegment& segment_;
  size_t area_bytes_, stride_;
  char* base_;
  std::vector<int> members_;
  int rank_;
  uint32_t round_;
  std::vector<uint32_t> seen_;  // of each rank's counter
};

}  // namespace quire
