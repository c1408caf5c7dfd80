#include "runtime/vector_tables.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/memory.h"

namespace quire {
namespace {

constexpr size_t num_values = 64;
constexpr int64_t indices_of_runs = 2048;
constexpr int num_runs = indices_of_runs / 16;
constexpr size_t num_runs_bytes = 3 * num_runs;

// A table in memory of its own: values, runs, planes, codes.
class HeldTable {
 public:
  HeldTable(const VectorLayout& layout, const std::vector<uint8_t>& codes,
            const std::vector<uint8_t>& values)
      : memory_(num_values + num_runs_bytes + 2 * static_cast<size_t>(layout.indices()) +
                codes.size()) {
    auto* const repeated = static_cast<uint8_t*>(memory_.data());
    uint8_t* const runs = repeated + num_values;
    uint8_t* const planes = runs + num_runs_bytes;
    uint8_t* const copied = planes + 2 * layout.indices();
    const int fields = layout.inputs / 2, bits = layout.field_bits();  // of a byte of a plane
    for (size_t i = 0; i < num_values; ++i) {
      const size_t number = i & ((size_t{1} << bits) - 1);
      repeated[i] = number < values.size() ? values[number] : 0;
    }
    for (size_t i = 0; i < codes.size(); ++i) {
      const auto at = static_cast<int64_t>(i), input = at % layout.inputs;
      const auto number = std::find(values.begin(), values.end(), codes[i]) - values.begin();
      if (layout.has_bit_planes()) {
        for (int bit = 0; bit < 2; ++bit) {
          uint8_t& byte = planes[bit * layout.indices() + at / layout.inputs];
          byte = static_cast<uint8_t>(byte | (~number >> bit & 1) << input);
        }
        continue;
      }
      uint8_t& byte = planes[input / fields * layout.indices() + at / layout.inputs];
      byte = static_cast<uint8_t>(byte | number << input % fields * bits);
    }
    std::memcpy(copied, codes.data(), codes.size());
    table_ = {copied, repeated, planes, runs};
    has_runs_ = layout.indices() != indices_of_runs || fill_runs(planes + indices_of_runs, runs);
  }

  // Whether the second plane of 2048 vectors is one of runs.
  bool has_runs() const { return has_runs_; }

  const VectorTable* table() const { return &table_; }

 private:
  static bool fill_runs(const uint8_t* plane, uint8_t* runs) {
    for (int run = 0; run < num_runs; ++run, plane += 16) {
      const uint8_t first = plane[0], last = plane[15];
      int change = 1;
      while (change < 16 && plane[change] == first) ++change;
      for (int i = change; i < 16; ++i)
        if (plane[i] != last) return false;
      runs[run] = first;
      runs[num_runs + run] = last;
      runs[2 * num_runs + run] = static_cast<uint8_t>(change);
    }
    return true;
  }

  AlignedMemory memory_;
  VectorTable table_;
  bool has_runs_;
};

}  // namespace

const VectorTable* vector_table_of(const VectorLayout& layout, const uint8_t* codes) {
  using Key = std::tuple<int, bool, std::vector<uint8_t>>;
  static std::map<Key, std::unique_ptr<HeldTable>> tables;
  const std::vector<uint8_t> copy(codes, codes + layout.indices() * layout.inputs);
  std::unique_ptr<HeldTable>& held = tables[{layout.inputs, layout.has_bit_planes(), copy}];
  if (held) return held->table();
  std::vector<uint8_t> values = copy;
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  if (values.size() > size_t{1} << layout.field_bits()) return nullptr;
  auto made = std::make_unique<HeldTable>(layout, copy, values);
  if (!made->has_runs()) return nullptr;
  held = std::move(made);
  return held->table();
}

}  // namespace quire
