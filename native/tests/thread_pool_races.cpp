// Drives the thread pool hard enough for ThreadSanitizer to see what it does; scripts/check_native
// builds and runs it. Chunks write plain memory that the caller reads afterwards: a missing
// happens-before edge is a race that is reported, a chunk lost or run twice a wrong count.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "runtime/thread_pool.h"

namespace {

void expect(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "thread_pool_races: %s\n", what);
  std::exit(1);
}

// Calls of many sizes, one after the other, chunks claimed singly and in runs: each chunk once, its
// write seen by the caller.
void call_often(int rounds) {
  std::vector<int> counts(97, 0);
  for (int round = 0; round < rounds; ++round) {
    const auto num_chunks = 1 + round % 97;
    const auto claim = round % 2 ? quire::Claim::run : quire::Claim::one;
    quire::parallel_for(
        num_chunks, [&](int64_t chunk) { ++counts[static_cast<size_t>(chunk)]; }, claim);
    int sum = 0;
    for (int& count : counts) {
      sum += count;
      count = 0;
    }
    expect(sum == num_chunks, "each chunk runs once");
  }
}

// A chunk that lasts longer than the pool spins: its thread may lose its core, others sleep.
void call_slowly(int rounds) {
  std::vector<uint64_t> results(7, 0);
  for (int round = 0; round < rounds; ++round) {
    quire::parallel_for(7, [&](int64_t chunk) {
      uint64_t value = static_cast<uint64_t>(chunk) + 1;
      for (int step = 0; step < 20'000 * (1 + chunk % 3); ++step)
        value = value * 6364136223846793005 + 1;
      results[static_cast<size_t>(chunk)] = value;
    });
    for (uint64_t& result : results) {
      expect(result != 0, "a slow chunk is waited for");
      result = 0;
    }
  }
}

void call_nested(int rounds) {
  std::vector<int> counts(64, 0);
  for (int round = 0; round < rounds; ++round)
    quire::parallel_for(8, [&](int64_t outer) {
      quire::parallel_for(8,
                          [&](int64_t inner) { ++counts[static_cast<size_t>(outer * 8 + inner)]; });
    });
  for (const int count : counts) expect(count == rounds, "nested chunks run once");
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 2000;
  for (const int threads : {1, 2, 3, 8}) {
    quire::set_num_threads(threads);
    call_often(rounds);
    call_slowly(rounds / 20);
    call_nested(rounds / 4);
  }
  // Callers take turns while another thread changes the pool under them.
  std::atomic<bool> done{false};
  std::thread resizer([&] {
    for (int size = 1; !done.load(); size = size % 5 + 1) {
      quire::set_num_threads(size);
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) callers.emplace_back([&] { call_often(rounds); });
  callers.emplace_back([&] { call_slowly(rounds / 20); });
  callers.emplace_back([&] { call_nested(rounds / 4); });
  for (auto& caller : callers) caller.join();
  done.store(true);
  resizer.join();
  quire::set_num_threads(1);
  std::puts("thread_pool_races: all chunks once");
}
