// Python: instruction sets, threads and the probes of tests.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "bindings/binding.h"
#include "bindings/packed_weights.h"
#include "runtime/checksum_pieces.h"
#include "runtime/matrix_rows.h"
#include "runtime/memory.h"
#include "runtime/nodes.h"
#include "runtime/thread_pool.h"

namespace quire {
namespace {

void set_isa(const std::string& isa) {
  if (select_isa(isa.c_str())) return;
  std::string known;
  for (int i = 0; available_isa(i); ++i) known += std::string(i ? ", " : "") + available_isa(i);
  throw std::invalid_argument("[set_isa] this machine has " + known + "; got " + isa + ".");
}

std::vector<std::string> names_of(const char* (*isa)(int)) {
  std::vector<std::string> names;
  for (int i = 0; isa(i); ++i) names.emplace_back(isa(i));
  return names;
}

// Whether two tables have one function for a kernel.
bool share_kernel(const Kernels& one, const Kernels& other, const std::string& kernel) {
#define QUIRE_KERNEL(result, name, arguments) \
  if (kernel == #name) return one.name == other.name;
#include "include/kernels.def"
#undef QUIRE_KERNEL
  throw std::invalid_argument("[own_isas] kernel must be one of kernels.def; got " + kernel + ".");
}

// Those instruction sets whose tables have a function for the kernel that none before them has.
std::vector<std::string> own_isas(const std::string& kernel, bool emulated) {
  std::vector<std::string> isas = names_of(available_isa), own;
  if (emulated)
    for (const std::string& isa : names_of(emulated_isa)) isas.push_back(isa);
  for (const std::string& isa : isas) {
    const Kernels& table = *find_kernels(isa.c_str());
    const auto first = std::find_if(isas.begin(), isas.end(), [&](const std::string& other) {
      return share_kernel(*find_kernels(other.c_str()), table, kernel);
    });
    if (*first == isa) own.push_back(isa);
  }
  return own;
}

void exp_array(nb::handle x, int64_t n, nb::handle out) {
  kernels().exp_array(Input<float>(x, n), n, Output<float>(out, n));
}

void round_trip(nb::handle x, int64_t n, int dtype, nb::handle out) {
  kernels().round_trip(Input<float>(x, n), n, static_cast<DType>(dtype), Output<float>(out, n));
}

// Add `inner` to each of n counters, one chunk per counter, by a nested parallel_for.
void count_chunks(nb::handle counters, int64_t n, int64_t inner, bool runs) {
  Output<int32_t> buffer(counters, n);
  int32_t* counts = buffer;
  nb::gil_scoped_release release;
  parallel_for(
      n, [=](int64_t chunk) { parallel_for(inner, [=](int64_t) { counts[chunk] += 1; }); },
      runs ? Claim::run : Claim::one);
}

std::vector<uint64_t> checksums_of(nb::handle data, const std::vector<Part>& parts) {
  const Buffer buffer(data, 0, false);
  for (const auto& [begin, bytes] : parts)
    if (begin > buffer.bytes() || bytes > buffer.bytes() - begin)
      throw std::invalid_argument("[checksums] parts must lie inside the buffer.");
  nb::gil_scoped_release release;
  return checksum_parts(buffer.data(), parts);
}

using RowsForTiles = std::pair<std::vector<int64_t>, int64_t>;

RowsForTiles rows_for_tiles() {
  const MatrixRows& rows = matrix_rows();
  return {{std::begin(rows.quantized), std::end(rows.quantized)}, rows.bfloat16};
}

void set_rows_for_tiles(const std::vector<int64_t>& quantized, int64_t bfloat16) {
  MatrixRows rows{{}, bfloat16};
  if (quantized.size() != num_matrix_forms)
    throw std::invalid_argument("[set_matrix_rows] there is a number of rows for each form.");
  std::copy(quantized.begin(), quantized.end(), rows.quantized);
  set_matrix_rows(rows);
}

// The policy of /proc/self/numa_maps for memory spread over the nodes; empty where refused.
std::string policy_of_spread_memory() {
  const AlignedMemory memory(size_t{4} << 20);
  if (!spread_over_nodes(memory.data(), memory.bytes())) return "";
  std::ostringstream address;
  address << std::hex << reinterpret_cast<uintptr_t>(memory.data()) << ' ';
  std::ifstream maps("/proc/self/numa_maps");
  for (std::string line; std::getline(maps, line);)
    if (line.rfind(address.str(), 0) == 0) return line.substr(address.str().size());
  return "";
}

}  // namespace

void bind_runtime(nb::module_& m) {
  m.def(
      "available_isas", [] { return names_of(available_isa); },
      "Instruction sets of this machine, worst first.");
  m.def(
      "emulated_isas", [] { return names_of(emulated_isa); },
      "Those emulated to test their logic: slow, used when asked for by name only.");
  m.def(
      "own_isas", own_isas, nb::arg("kernel"), nb::arg("emulated") = false,
      "Instruction sets of this machine, worst first and with `emulated` those, too, that compile "
      "the kernel of kernels.def themselves: the others have its function from a worse one.");
  m.def("matrix_rows", rows_for_tiles,
        "Rows from which linears take matrix tiles: those of quantized weights of each form, by "
        "PackedQuantizedWeights.matrix_form, and those of bfloat16 ones.");
  m.def("set_matrix_rows", set_rows_for_tiles,
        "Take tiles from these numbers of rows on; bits stay the same.");
  m.def("isa", [] { return kernels().isa; }, "The instruction set in use.");
  m.def("set_isa", set_isa, "Use another instruction set; ValueError when the machine lacks it.");
  m.def("num_jobs", num_jobs, "Jobs of the compute threads so far; each ends in a barrier.");
  m.def("num_threads", num_threads, "Compute threads in use, the caller included.");
  m.def("set_num_threads", set_num_threads, nb::call_guard<nb::gil_scoped_release>(),
        "Use this many compute threads in the whole process.");
  m.attr("packed_weights_version") = packed_weights_version;
  m.def("checksums", checksums_of,
        "64 bits each that tell damage of parts of a buffer, (begin, bytes).");
  m.def("count_chunks", count_chunks, nb::arg(), nb::arg(), nb::arg(), nb::arg("runs") = false);
  m.def("num_memory_nodes", num_memory_nodes, "Memory nodes that this process may use.");
  m.def("use_memory_nodes", use_memory_nodes,
        "Spread memory over these nodes alone from now on; over all of them if none is given.");
  m.def("policy_of_spread_memory", policy_of_spread_memory);
  m.def("exp_array", exp_array);
  m.def("round_trip", round_trip);
}

}  // namespace quire
