// Drives the collectives and streams of a shared segment by threads, for ThreadSanitizer to see
// what they do; scripts/check_native builds and runs it. Areas are plain memory that other ranks
// read: a missing happens-before edge is a race that is reported, a lost wake-up ends in RankLost.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "runtime/shared_group.h"
#include "runtime/shared_stream.h"

namespace {

using quire::SharedGroup;
using quire::SharedSegment;
using quire::SharedStream;

constexpr size_t area = 1024, capacity = 256, stream_bytes = 1 << 12;

void expect(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "shared_segment_races: %s\n", what);
  std::exit(1);
}

struct Rank {
  SharedSegment& segment;
  int size, rank;
  std::vector<int> members;
  SharedGroup group;
  quire::Rest rest;

  Rank(SharedSegment& segment, int size, int rank)
      : segment(segment),
        size(size),
        rank(rank),
        members(numbers(size)),
        group(segment, SharedSegment::header_bytes, area, members, rank) {}

  static std::vector<int> numbers(int size) {
    std::vector<int> found;
    for (int i = 0; i < size; ++i) found.push_back(i);
    return found;
  }

  void reduce(int round) {
    std::vector<float> x(static_cast<size_t>(1 + round % 700), static_cast<float>(rank + round));
    group.all_reduce(x.data(), static_cast<int64_t>(x.size()), rest);
    const float sum = static_cast<float>(size * round + size * (size - 1) / 2);
    for (const float value : x) expect(value == sum, "a sum has every rank's part");
  }

  // Only one rank waits: the others come to the next rounds early.
  void gather(int round) {
    const size_t width = static_cast<size_t>(round % 90), rows = 5;
    const std::vector<char> part(rows * width, static_cast<char>(rank));
    std::vector<char> out(rows * width * static_cast<size_t>(size));
    const int root = round % (size + 1) - 1;
    group.gather(part.data(), std::vector<size_t>(static_cast<size_t>(size), width), rows,
                 out.data(), root, rest);
    if (root >= 0 && root != rank) return;
    for (size_t i = 0; i < out.size(); ++i)
      expect(out[i] == static_cast<char>(i / width % static_cast<size_t>(size)),
             "columns in order");
  }

  void tell(int round) { expect(group.any(rank == round % size, rest), "one flag is enough"); }
};

void compute(SharedSegment& segment, int size, int rank, int rounds) {
  Rank mine(segment, size, rank);
  for (int round = 0; round < rounds; ++round) {
    mine.reduce(round);
    mine.gather(round);
    mine.tell(round);
    if (round % 50 == rank) std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
}

// Messages to all others, most of them larger than the ring; readers are as fast as they like.
void command(SharedSegment& segment, int size, int rank, int rounds) {
  std::vector<int> readers = Rank::numbers(size);
  readers.erase(readers.begin());
  SharedStream stream(segment, SharedSegment::header_bytes, capacity, 0, readers, rank);
  quire::Rest rest;
  for (int round = 0; round < rounds; ++round) {
    const size_t bytes = static_cast<size_t>(round * 7 % 900);
    std::vector<char> message(bytes, static_cast<char>(round));
    if (rank == 0) {
      stream.write({{message.data(), bytes / 2}, {message.data(), bytes - bytes / 2}}, rest);
    } else {
      expect(stream.next(rest, true) == bytes, "messages come in order");
      stream.read(message.data(), bytes, rest);
      for (const char value : message) expect(value == static_cast<char>(round), "whole messages");
    }
  }
}

int memory(size_t bytes) {
  const int descriptor = memfd_create("races", 0);
  expect(descriptor >= 0 && !ftruncate(descriptor, static_cast<off_t>(bytes)), "memory");
  return descriptor;
}

template <class Program>
void run(int size, int rounds, std::chrono::microseconds spin, Program program) {
  const size_t bytes = SharedSegment::header_bytes + SharedGroup::bytes(8, area) + stream_bytes;
  const int descriptor = memory(bytes);
  // One mapping: the sanitizer knows addresses, not pages.
  SharedSegment segment(descriptor, 0, {spin, std::chrono::seconds(60)});
  close(descriptor);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] { program(segment, size, rank, rounds); });
  for (std::thread& thread : threads) thread.join();
}

// A rank that waits when another one fails is told, with the whole reason.
void fail_while_others_wait() {
  const auto wait = [](SharedSegment& segment, int size, int rank, int) {
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      segment.fail(7, "a reason");
      return;
    }
    Rank mine(segment, size, rank);
    try {
      mine.group.any(false, mine.rest);
      expect(false, "no rank passes");
    } catch (const quire::RankLost& lost) {
      expect(lost.rank == 7 && std::string(lost.what()) == "a reason", "the one that failed");
    }
  };
  run(3, 1, std::chrono::microseconds(50), wait);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 1000;
  for (const auto spin : {std::chrono::microseconds(0), std::chrono::microseconds(50)})
    for (const int size : {1, 2, 3, 5}) {
      run(size, rounds, spin, compute);
      run(size, rounds * 2, spin, command);
    }
  fail_while_others_wait();
  std::puts("shared_segment_races: every part arrived");
}
