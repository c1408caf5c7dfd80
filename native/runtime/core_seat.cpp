#include "runtime/core_seat.h"

#include <pthread.h>
#include <unistd.h>

namespace quire {
namespace {

// A thread that runs has used some of this by the second look.
constexpr int64_t look_nanoseconds = 10'000;

int64_t nanoseconds(clockid_t clock) {
  timespec now{};
  return clock_gettime(clock, &now) ? -1 : now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// Move the calling thread to another core and let it run on all that it may again.
void leave_core(const cpu_set_t& allowed) {
  cpu_set_t others = allowed;
  CPU_CLR(sched_getcpu(), &others);
  (void)sched_setaffinity(0, sizeof(others), &others);
  (void)sched_setaffinity(0, sizeof(allowed), &allowed);
}

}  // namespace

void CoreSeat::take() {
  clockid_t clock = 0;
  if (pthread_getcpuclockid(pthread_self(), &clock)) return;
  clock_.store(clock);
  thread_.store(gettid());
}

void CoreSeat::help(bool leave) {
  if (!holding_.load() || !thread_.load()) return;
  const int64_t used = nanoseconds(clock_.load()), begin = nanoseconds(CLOCK_MONOTONIC);
  while (nanoseconds(CLOCK_MONOTONIC) - begin < look_nanoseconds)
    if (!holding_.load()) return;
  if (nanoseconds(clock_.load()) != used) return;
  Help none = Help::none;
  if (!help_.compare_exchange_strong(none, Help::coming)) return;
  // The thread clears `holding` before it looks for help: it sees this one, or is seen to be done.
  const bool moved = holding_.load() && move_here();
  help_.store(moved ? Help::there : Help::none);
  cpu_set_t own;
  if (moved && leave && !sched_getaffinity(0, sizeof(own), &own)) leave_core(own);
}

bool CoreSeat::move_here() {
  const pid_t thread = thread_.load();
  const int here = sched_getcpu();
  if (here < 0 || sched_getaffinity(thread, sizeof(allowed_), &allowed_)) return false;
  if (!CPU_ISSET(here, &allowed_) || CPU_COUNT(&allowed_) < 2) return false;
  CPU_ZERO(&moved_to_);
  CPU_SET(here, &moved_to_);
  return sched_setaffinity(thread, sizeof(moved_to_), &moved_to_) == 0;
}

void CoreSeat::go_back(bool stay) {
  while (help_.load() == Help::coming) sched_yield();
  if (help_.load() == Help::none) return;
  // Another program (taskset, a container's new cpuset) may have decided meanwhile: that stands.
  cpu_set_t now;
  if (sched_getaffinity(0, sizeof(now), &now) || !CPU_EQUAL(&now, &moved_to_)) {
    help_.store(Help::none);
    return;
  }
  if (stay)
    (void)sched_setaffinity(0, sizeof(allowed_), &allowed_);
  else
    leave_core(allowed_);
  help_.store(Help::none);
}

}  // namespace quire
