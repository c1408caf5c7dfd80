// Memory that several processes have in common, and how one of them waits for another.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace quire {

// A rank has died or gives no sign of life: nothing more can be computed together.
class RankLost : public std::runtime_error {
 public:
  RankLost(int rank, const std::string& what) : std::runtime_error(what), rank(rank) {}
  const int rank;
};

// What one rank raises and others wait for; it wraps. To lie on a cache line of its own.
struct Counter {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;
};

// What a thread does around a sleep, such as to let go of the interpreter's lock.
class Rest {
 public:
  virtual ~Rest() = default;
  virtual void begin() {}
  virtual void end() {}
};

struct WaitLimits {
  std::chrono::nanoseconds spin;     // before a rank sleeps
  std::chrono::nanoseconds silence;  // of a rank that is waited for, until it counts as lost
};

// One rank's view. First comes a header; all else is the business of those who use the segment.
class SharedSegment {
 public:
  static constexpr size_t header_bytes = 5 * 4096;
  static constexpr int max_ranks = 256;

  // Map the file of `descriptor`, whose bytes are zero when its first rank opens it; it may be
  // closed afterwards. Throws std::invalid_argument.
  SharedSegment(int descriptor, int rank, WaitLimits limits);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // Null where the range does not lie in the segment.
  char* at(size_t offset, size_t bytes) const;

  // Say that this rank makes progress.
  void give_sign() { seat(rank_).signs.fetch_add(1, std::memory_order_relaxed); }

  // Every rank's waits end with RankLost from now on, which tells `reason`. The first one stands.
  void fail(int rank, const std::string& reason);

  // Return counter.value once it is `least` or later, which `rank` brings about. Unless `patient`,
  // its silence has a limit. Throws RankLost.
  uint32_t wait(Counter& counter, uint32_t least, int rank, Rest& rest, bool patient = false);
  static void publish(Counter& counter, uint32_t value);

 private:
  struct alignas(64) Seat {
    std::atomic<int32_t> process;
    std::atomic<uint32_t> signs;
    std::atomic<int32_t> sleeps_for;  // that rank + 1, or 0
  };
  struct Header {
    std::atomic<uint32_t> failed;  // 1 while the reason is written, rank + 2 then
    char reason[508];
    Seat seats[max_ranks];
  };
  static_assert(sizeof(Header) <= header_bytes);

  Header& header() const { return *reinterpret_cast<Header*>(data_); }
  Seat& seat(int rank) const { return header().seats[rank]; }
  // Throws RankLost after `fail`.
  void check() const;
  uint32_t sleep(Counter& counter, uint32_t least, int rank, bool patient);
  int rank_at_fault(int rank) const;

  char* data_;
  size_t bytes_;
  int rank_;
  WaitLimits limits_;
};

// Whether `value` is `least` or a later one; numbers wrap.
inline bool has_reached(uint32_t value, uint32_t least) {
  return static_cast<int32_t>(value - least) >= 0;
}

}  // namespace quire
