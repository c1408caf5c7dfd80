// Where a compute thread sits, and how others get it a core when a stranger has taken its own.
//
// A thread that is taken off its core while it holds a chunk keeps all others waiting until its
// turn comes again: milliseconds, for microseconds of work. A waiting thread gives it the core that
// waiting leaves free; the thread finishes the chunk there and goes back to queue for its old core,
// empty-handed, so that no thread has to wait for it.
#pragma once

#include <sched.h>
#include <time.h>

#include <atomic>

namespace quire {

class CoreSeat {
 public:
  // The calling thread sits here from now on.
  void take();

  // Around work that others may wait for, by the thread itself. A thread that was helped meanwhile
  // leaves the core to its helper, unless it is to `stay`.
  void begin() { holding_.store(true); }
  void end(bool stay) {
    holding_.store(false);
    if (help_.load() != Help::none) go_back(stay);
  }

  // By a thread that waits, about another: if that one has work but no core, move it to the
  // caller's core, which the caller is to `leave` or will sleep on. Does nothing where the thread
  // may not run there.
  void help(bool leave);

 private:
  enum class Help { none, coming, there };

  void go_back(bool stay);
  bool move_here();

  std::atomic<pid_t> thread_{0};
  std::atomic<clockid_t> clock_{0};
  std::atomic<bool> holding_{false};
  std::atomic<Help> help_{Help::none};
  // Before the move, and where to; the helper's while help is coming, then the thread's.
  cpu_set_t allowed_{}, moved_to_{};
};

}  // namespace quire
