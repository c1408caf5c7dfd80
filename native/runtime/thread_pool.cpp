// A job is open while its ticket has chunks left; a thread that lowers it by k owns k chunks.
//
//   caller:  write job fields -> publish ticket (epoch, n) -> wake sleepers -> claim ... -> wait
//   done == n worker:  spin a little -> sleep on `wake` -> claim (epoch, n) -> (epoch, n - k) ...
//   -> done += k
//
// The caller waits only for chunks that a worker claimed: one that never got a core in time finds
// the ticket empty, and was not waited for. One that lost its core with a chunk in hand is
// given the core of one that waits (core_seat.h).
#include "runtime/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/core_seat.h"
#include "runtime/spin.h"

namespace quire {
namespace {

using Word = std::atomic<uint32_t>;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free, "a futex is a plain 32-bit word");

// Long enough to bridge the Python code between two kernels, short enough for a shared machine.
constexpr auto spin_time = std::chrono::microseconds(40);

// How long a thread sleeps before it looks again whether one that it waits for has a core.
constexpr timespec patience{0, 300'000};

void futex_wait(Word& word, uint32_t seen, const timespec* limit = nullptr) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, limit, nullptr, 0);
}

void futex_wake(Word& word, int count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

thread_local bool inside_chunk = false;

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads) : seats_(static_cast<size_t>(num_threads)) {
    for (size_t i = 1; i < seats_.size(); ++i)
      threads_.emplace_back([this, i] { work(seats_[i]); });
  }

  ~ThreadPool() {
    stop_.store(true);
    wake_.fetch_add(1);
    futex_wake(wake_, INT_MAX);
    for (auto& thread : threads_) thread.join();
  }

  // After fork() the child has the object but not the threads.
  void abandon() {
    for (auto& thread : threads_) thread.detach();
  }

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  void run(uint32_t num_chunks, Claim claim, void (*call)(const void*, int64_t),
           const void* context) {
    share_.store(claim == Claim::run ? 2 * static_cast<uint32_t>(seats_.size()) : UINT32_MAX,
                 std::memory_order_relaxed);
    call_.store(call, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    size_.store(num_chunks, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    seats_[0].take();
    const uint64_t epoch = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(epoch << 32 | num_chunks, std::memory_order_release);
    wake_.fetch_add(1);
    if (sleepers_.load() > 0) futex_wake(wake_, static_cast<int>(num_chunks) - 1);
    work_on(seats_[0], true);
    wait_done(num_chunks);
  }

 private:
  // Run chunks of the open job until none is left.
  void work_on(CoreSeat& seat, bool stay) {
    inside_chunk = true;
    seat.begin();
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(ticket) != 0) {
      // These belong to the ticket's job if the exchange succeeds: they change only after it.
      const auto call = call_.load(std::memory_order_relaxed);
      const void* context = context_.load(std::memory_order_relaxed);
      const uint32_t size = size_.load(std::memory_order_relaxed);
      const auto left = static_cast<uint32_t>(ticket);
      const uint32_t taken = std::max(1u, left / share_.load(std::memory_order_relaxed));
      if (!ticket_.compare_exchange_weak(ticket, ticket - taken, std::memory_order_acq_rel,
                                         std::memory_order_acquire))
        continue;
      for (uint32_t i = 0; i < taken; ++i) call(context, size - left + i);
      if (done_.fetch_add(taken) + taken == size && caller_sleeps_.load()) futex_wake(done_, 1);
      ticket = ticket_.load(std::memory_order_acquire);
    }
    seat.end(stay);
    inside_chunk = false;
  }

  void wait_done(uint32_t num_chunks) {
    const auto finished = [&] { return done_.load(std::memory_order_acquire) == num_chunks; };
    if (finished() || spin_until(finished, spin_time)) return;
    caller_sleeps_.store(true);
    for (uint32_t seen; (seen = done_.load()) != num_chunks;) {
      for (size_t i = 1; i < seats_.size(); ++i) seats_[i].help(false);
      futex_wait(done_, seen, &patience);
    }
    caller_sleeps_.store(false);
  }

  void work(CoreSeat& seat) {
    seat.take();
    const auto open = [&] {
      return static_cast<uint32_t>(ticket_.load(std::memory_order_acquire)) != 0 || stop_.load();
    };
    while (!stop_.load()) {
      if (!spin_until(open, spin_time)) {
        seats_[0].help(true);
        sleepers_.fetch_add(1);
        const uint32_t seen = wake_.load();
        if (!open()) futex_wait(wake_, seen);
        sleepers_.fetch_sub(1);
      }
      work_on(seat, false);
    }
  }

  // Apart, so that claiming and finishing do not fight over one cache line.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) Word done_{0};
  std::atomic<bool> caller_sleeps_{false};
  alignas(64) Word wake_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<void (*)(const void*, int64_t)> call_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<uint32_t> size_{0};
  std::atomic<uint32_t> share_{1};  // a thread takes the chunks left, divided by it
  std::vector<CoreSeat> seats_;     // the caller's first
  std::vector<std::thread> threads_;
};

std::mutex turn;  // held by the caller whose job runs, and while the pool changes
std::atomic<int> wanted{1};
std::atomic<uint64_t> jobs{0};

std::unique_ptr<ThreadPool>& pool() {
  // Never destroyed: at exit other threads may still be inside, and joining could hang.
  static auto* instance = new std::unique_ptr<ThreadPool>();
  return *instance;
}

void before_fork() { turn.lock(); }
void after_fork_in_parent() { turn.unlock(); }
void after_fork_in_child() {
  if (pool()) {
    pool()->abandon();
    (void)pool().release();  // leaked: its threads exist only in the parent
  }
  turn.unlock();
}

ThreadPool& ready_pool() {
  static const int registered =
      pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  (void)registered;
  const int threads = wanted.load();
  if (!pool() || pool()->num_threads() != threads) {
    pool().reset();
    pool() = std::make_unique<ThreadPool>(threads);
  }
  return *pool();
}

}  // namespace

void set_num_threads(int num_threads) {
  std::lock_guard<std::mutex> lock(turn);
  wanted.store(num_threads > 1 ? num_threads : 1);
}

int num_threads() { return wanted.load(); }

uint64_t num_jobs() { return jobs.load(std::memory_order_relaxed); }

void run_chunks(int64_t num_chunks, Claim claim, void (*call)(const void*, int64_t),
                const void* context) {
  if (num_chunks <= 0) return;
  if (num_chunks == 1 || inside_chunk || wanted.load() == 1) {
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) call(context, chunk);
    return;
  }
  std::lock_guard<std::mutex> lock(turn);
  jobs.store(jobs.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  ready_pool().run(static_cast<uint32_t>(num_chunks), claim, call, context);
}

}  // namespace quire
