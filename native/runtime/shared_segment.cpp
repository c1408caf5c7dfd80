#include "runtime/shared_segment.h"

#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "runtime/spin.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;
static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free,
              "a futex is a plain 32-bit word");

// How long a thread sleeps before it looks again whether all ranks are alive.
constexpr timespec look_again{0, 100'000'000};

// A process of which only the exit status is left is dead, too: its parent may be one that waits.
bool is_dead(pid_t process) {
#ifdef SYS_pidfd_open
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
  if (descriptor >= 0) {
    pollfd end{descriptor, POLLIN, 0};
    const bool dead = poll(&end, 1, 0) > 0;
    close(descriptor);
    return dead;
  }
  if (errno == ESRCH) return true;
#endif
  return kill(process, 0) && errno == ESRCH;
}

}  // namespace

SharedSegment::SharedSegment(int descriptor, int rank, WaitLimits limits)
    : rank_(rank), limits_(limits) {
  struct stat status{};
  if (fstat(descriptor, &status) || static_cast<size_t>(status.st_size) < header_bytes)
    throw std::invalid_argument("[shared segment] the descriptor must be that of a segment.");
  if (rank < 0 || rank >= max_ranks)
    throw std::invalid_argument("[shared segment] ranks go from 0 to 255.");
  bytes_ = static_cast<size_t>(status.st_size);
  void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED)
    throw std::invalid_argument(std::string("[shared segment] ") + std::strerror(errno));
  data_ = static_cast<char*>(data);
  seat(rank).process.store(getpid());
}

SharedSegment::~SharedSegment() { munmap(data_, bytes_); }

char* SharedSegment::at(size_t offset, size_t bytes) const {
  if (offset % 64 || offset < header_bytes || offset > bytes_ || bytes > bytes_ - offset)
    return nullptr;
  return data_ + offset;
}

void SharedSegment::fail(int rank, const std::string& reason) {
  uint32_t none = 0;
  if (!header().failed.compare_exchange_strong(none, 1)) return;
  const size_t length = std::min(reason.size(), sizeof(Header::reason) - 1);
  std::memcpy(header().reason, reason.data(), length);
  header().failed.store(static_cast<uint32_t>(rank) + 2);
}

void SharedSegment::check() const {
  const uint32_t failed = header().failed.load();
  if (failed > 1) throw RankLost(static_cast<int>(failed) - 2, header().reason);
}

void SharedSegment::publish(Counter& counter, uint32_t value) {
  // In one order with the sleeper's: it counts itself, then reads the value.
  counter.value.store(value);
  if (counter.sleepers.load())
    syscall(SYS_futex, &counter.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

uint32_t SharedSegment::wait(Counter& counter, uint32_t least, int rank, Rest& rest, bool patient) {
  uint32_t value = 0;
  const auto has_come = [&] {
    value = counter.value.load(std::memory_order_acquire);
    return has_reached(value, least);
  };
  if (has_come() || spin_until(has_come, limits_.spin)) return value;
  struct Resting {
    Counter& counter;
    Seat& seat;
    Rest& rest;
    Resting(Counter& counter, Seat& seat, int rank, Rest& rest)
        : counter(counter), seat(seat), rest(rest) {
      rest.begin();
      seat.sleeps_for.store(rank + 1);
      counter.sleepers.fetch_add(1);
    }
    ~Resting() {
      counter.sleepers.fetch_sub(1);
      seat.signs.fetch_add(1);
      seat.sleeps_for.store(0);
      rest.end();
    }
  } const resting(counter, seat(rank_), rank, rest);
  return sleep(counter, least, rank, patient);
}

uint32_t SharedSegment::sleep(Counter& counter, uint32_t least, int rank, bool patient) {
  uint32_t signs = seat(rank).signs.load();
  auto last = Clock::now();
  for (;;) {
    const uint32_t value = counter.value.load();
    if (has_reached(value, least)) return value;
    check();
    if (!syscall(SYS_futex, &counter.value, FUTEX_WAIT, value, &look_again, nullptr, 0)) continue;
    if (errno != ETIMEDOUT) continue;
    const pid_t process = seat(rank).process.load();
    if (process && is_dead(process) && !has_reached(counter.value.load(), least))
      fail(rank, "its process has ended");
    const uint32_t now = seat(rank).signs.load();
    if (now != signs) last = Clock::now();
    signs = now;
    if (!patient && Clock::now() - last > limits_.silence)
      fail(rank_at_fault(rank), "it gave no sign of life for too long");
  }
}

// The rank at the end of the chain of waits that begins with `rank`, or the first of a circle.
int SharedSegment::rank_at_fault(int rank) const {
  for (int step = 0; step < max_ranks; ++step) {
    const int next = seat(rank).sleeps_for.load() - 1;
    if (next < 0 || next == rank_) return rank;
    rank = next;
  }
  return rank;
}

}  // namespace quire
