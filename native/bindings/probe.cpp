// Python: the machine's limits, measured on the pool's threads: the best of many short runs,
// because a busy neighbour only ever makes one slower. Each call takes 0.1 to 0.3 s.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/binding.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace quire {
namespace {

constexpr int64_t chunks_per_thread = 8;

// Least seconds that body(run, chunk) over chunks_per_thread chunks a thread takes, over many runs.
template <class Body>
double best_seconds(int runs, const Body& body) {
  double best = 1e30;
  for (int run = 0; run < runs; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    parallel_for(num_threads() * chunks_per_thread, [&](int64_t chunk) { body(run, chunk); });
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (taken.count() < best) best = taken.count();
  }
  return best;
}

double flops(double (*probe)(int64_t, float*)) {
  nb::gil_scoped_release release;
  constexpr int64_t rounds = 1 << 15;
  float unused = 0;
  const double work =
      probe(rounds, &unused) * static_cast<double>(num_threads() * chunks_per_thread);
  return work / best_seconds(60, [=](int, int64_t) {
           float sink = 0;
           probe(rounds, &sink);
         });
}

// float32 and bfloat16 operations per second of the calling thread alone, on any instruction set of
// this machine, in some milliseconds: the best of many runs of microseconds, taken in turn.
std::pair<double, double> brief_flops(const std::string& isa) {
  const Kernels* table = find_kernels(isa.c_str());
  if (!table)
    throw std::invalid_argument("[brief_flops] this machine must have it; got " + isa + ".");
  constexpr int64_t rounds = 1500;
  constexpr int runs = 200;
  double (*const probes[])(int64_t, float*) = {table->probe_fma, table->probe_dot};
  double best[] = {0, 0};
  for (int run = 0; run < runs; ++run)
    for (int i = 0; i < 2; ++i) {
      float sink = 0;
      const auto begin = std::chrono::steady_clock::now();
      const double work = probes[i](rounds, &sink);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      best[i] = std::max(best[i], work / taken.count());
    }
  return {best[0], best[1]};
}

// Memory of far more than a last cache holds; each read is of the next of its parts, in turn: of
// 128 MiB a cache still serves some.
class MemoryReader {
 public:
  MemoryReader() : memory_(bytes) {
    std::memset(memory_.data(), 1, bytes);  // untouched pages would all be one page of zeros
  }

  // Seconds that the pool's threads take to read the next part.
  double read() {
    const auto* data = static_cast<const float*>(memory_.data()) + next_++ % parts * part;
    const int64_t piece = part / (num_threads() * chunks_per_thread);
    return best_seconds(1, [=](int, int64_t chunk) {
      float sink;
      kernels().probe_read(data + chunk * piece, piece, &sink);
    });
  }

  static constexpr int64_t parts = 16;
  static constexpr size_t bytes = size_t{512} << 20, part_bytes = bytes / parts;

 private:
  static constexpr int64_t part = part_bytes / sizeof(float);
  AlignedMemory memory_;
  int64_t next_ = 0;
};

double read_bytes_per_second() {
  nb::gil_scoped_release release;
  MemoryReader reader;
  double best = 1e30;
  for (int64_t run = 0; run < 6 * MemoryReader::parts; ++run) best = std::min(best, reader.read());
  return MemoryReader::part_bytes / best;
}

// What a job costs beyond its work: as many chunks as threads, against one of them alone.
double barrier_seconds() {
  nb::gil_scoped_release release;
  constexpr int runs = 1001;
  constexpr int64_t rounds = 1 << 11;  // some microseconds: no thread can take two chunks
  const auto median = [=](int chunks) {
    std::vector<double> times(runs);
    for (double& time : times) {
      const auto begin = std::chrono::steady_clock::now();
      parallel_for(chunks, [=](int64_t) {
        float sink = 0;
        kernels().probe_fma(rounds, &sink);
      });
      time = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
    return times[runs / 2];
  };
  const double together = median(num_threads()), alone = median(1);
  return together > alone ? together - alone : 0;
}

}  // namespace

void bind_probe(nb::module_& m) {
  m.def("measure_fma", [] { return flops(kernels().probe_fma); }, "float32 operations per second.");
  m.def(
      "measure_dot", [] { return flops(kernels().probe_dot); },
      "bfloat16 dot-product operations per second; 0 without the instruction.");
  m.def(
      "measure_int8", [] { return flops(kernels().probe_int8); },
      "int8 dot-product operations per second; 0 without instructions.");
  m.def("brief_flops", brief_flops, "float32 and bfloat16 operations per second of this thread.");
  m.def("measure_barrier", barrier_seconds, "Seconds of a job of the threads beyond its work.");
  nb::class_<MemoryReader>(m, "MemoryReader")
      .def(nb::init<>())
      .def("read", &MemoryReader::read, nb::call_guard<nb::gil_scoped_release>())
      .def_ro_static("part_bytes", &MemoryReader::part_bytes);
  m.def("measure_read", read_bytes_per_second, "Bytes read from memory per second.");
}

}  // namespace quire
