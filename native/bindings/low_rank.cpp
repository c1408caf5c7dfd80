// Python: adapters of low rank, one object for each linear that one is added to.
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "bindings/binding.h"
#include "runtime/memory.h"

namespace quire {
namespace {

size_t element_bytes(DType dtype) { return dtype == DType::float32 ? 4 : 2; }

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Memory on huge pages that several matrices share: one by one they are too small for them, and
// reading them from small pages took a quarter longer (Zen 4). It lives as long as one of them.
// Callers hold the GIL.
class SharedPages {
 public:
  explicit SharedPages(size_t bytes) {
    bytes = static_cast<size_t>(round_up(static_cast<int64_t>(bytes), 64));
    if (bytes > slab_bytes / 2) {
      slab_ = std::make_shared<AlignedMemory>(bytes);
      data_ = slab_->data();
      return;
    }
    static std::shared_ptr<AlignedMemory> open;
    static size_t used = 0;
    if (!open || used + bytes > slab_bytes) {
      open = std::make_shared<AlignedMemory>(slab_bytes);
      used = 0;
    }
    slab_ = open;
    data_ = static_cast<char*>(open->data()) + used;
    used += bytes;
  }

  void* data() const { return data_; }

 private:
  static constexpr size_t slab_bytes = size_t{2} << 20;  // of a huge page

  std::shared_ptr<AlignedMemory> slab_;
  void* data_;
};

// Owns what a LowRankWeights points to; parts are added one after the other.
class LowRankMatrix {
 public:
  LowRankMatrix(int64_t in_features, int64_t out_features, int64_t rank, int dtype)
      : out_features_(out_features) {
    if (in_features < 1 || out_features < 1 || rank < 1 || dtype < 0 || dtype > 2)
      throw std::invalid_argument("[low_rank] sizes must be at least 1, the type known.");
    weights_.dtype = static_cast<DType>(dtype);
    weights_.in_features = in_features;
    weights_.rank = round_up(rank, low_rank_step);
    down_ = hold(weights_.rank * low_rank_columns(in_features));
    weights_.down = down_->data();
  }

  // down (rank, in_features), up (num_outputs, rank), of the matrix's type.
  void add(int64_t first_output, int64_t num_outputs, int64_t rank, float scale, nb::handle down,
           nb::handle up) {
    const bool inside = first_output >= 0 && num_outputs >= 1 && rank >= 1 &&
                        first_output + num_outputs <= out_features_ &&
                        filled_ + rank <= weights_.rank;
    if (!inside) throw std::invalid_argument("[low_rank] a part must lie inside the matrix.");
    const size_t size = element_bytes(weights_.dtype);
    const size_t row = static_cast<size_t>(weights_.in_features) * size;
    const Buffer downs(down, static_cast<size_t>(rank) * row, false, size);
    const Buffer ups(up, static_cast<size_t>(num_outputs * rank) * size, false, size);
    ups_.push_back(hold(round_up(num_outputs, low_rank_panel) * rank));
    const GilRelease release(rank * (weights_.in_features + num_outputs));
    for (int64_t r = 0; r < rank; ++r)
      place_down(filled_ + r,
                 static_cast<const char*>(downs.data()) + static_cast<size_t>(r) * row);
    const char* source = static_cast<const char*>(ups.data());
    char* target = static_cast<char*>(ups_.back()->data());
    for (int64_t n = 0; n < num_outputs; ++n)
      for (int64_t r = 0; r < rank; ++r) {
        const int64_t at = (n / low_rank_panel * rank + r) * low_rank_panel + n % low_rank_panel;
        std::memcpy(target + static_cast<size_t>(at) * size,
                    source + static_cast<size_t>(n * rank + r) * size, size);
      }
    parts_.push_back({first_output, num_outputs, filled_, rank, scale, ups_.back()->data()});
    filled_ += rank;
    weights_.parts = parts_.data();
    weights_.num_parts = static_cast<int64_t>(parts_.size());
  }

  size_t nbytes() const { return nbytes_; }
  int64_t out_features() const { return out_features_; }
  const LowRankWeights& weights() const { return weights_; }

 private:
  // Spread a rank's inputs over its lines.
  void place_down(int64_t r, const char* row) {
    const size_t size = element_bytes(weights_.dtype);
    const int64_t block =
        r / low_rank_step * low_rank_step * low_rank_columns(weights_.in_features);
    for (int64_t i = 0; i < weights_.in_features; i += low_rank_line) {
      const int64_t at = block + i * low_rank_step + r % low_rank_step * low_rank_line;
      const int64_t num = std::min(low_rank_line, weights_.in_features - i);
      std::memcpy(static_cast<char*>(down_->data()) + static_cast<size_t>(at) * size,
                  row + static_cast<size_t>(i) * size, static_cast<size_t>(num) * size);
    }
  }

  std::unique_ptr<SharedPages> hold(int64_t elements) {
    const size_t bytes = static_cast<size_t>(elements) * element_bytes(weights_.dtype);
    nbytes_ += bytes;
    return std::make_unique<SharedPages>(bytes);
  }

  int64_t out_features_, filled_ = 0;
  size_t nbytes_ = 0;
  LowRankWeights weights_{};
  std::unique_ptr<SharedPages> down_;
  std::vector<std::unique_ptr<SharedPages>> ups_;
  std::vector<LowRankPart> parts_;
};

// Group i has rows[begins[i] .. ends[i]). False, and nothing done, when a row is outside the batch.
bool add_low_rank(const std::vector<const LowRankMatrix*>& matrices, nb::handle rows,
                  const std::vector<int64_t>& begins, const std::vector<int64_t>& ends,
                  nb::handle x, nb::handle out, int64_t num_rows) {
  if (matrices.empty() || matrices.size() != begins.size() || matrices.size() != ends.size())
    throw std::invalid_argument("[low_rank] each group must have a matrix and its bounds.");
  const int64_t in_features = matrices[0]->weights().in_features;
  const int64_t out_features = matrices[0]->out_features();
  int64_t work = 0, last = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const LowRankWeights& weights = matrices[i]->weights();
    if (weights.in_features != in_features || matrices[i]->out_features() != out_features)
      throw std::invalid_argument("[low_rank] matrices must be of one linear.");
    if (begins[i] < last || ends[i] < begins[i])
      throw std::invalid_argument("[low_rank] groups must follow one another.");
    last = ends[i];
    work += (ends[i] - begins[i]) * weights.rank * (in_features + out_features);
  }
  const Input<int32_t> index(rows, last);
  const Input<float> input(x, num_rows * in_features);
  const Output<float> output(out, num_rows * out_features);
  for (int64_t i = 0; i < last; ++i)
    if (index.get()[i] < 0 || index.get()[i] >= num_rows) return false;
  std::vector<LowRankRows> groups;
  for (size_t i = 0; i < matrices.size(); ++i)
    groups.push_back({&matrices[i]->weights(), index.get() + begins[i], ends[i] - begins[i]});
  const GilRelease release(work);
  kernels().add_low_rank(groups.data(), static_cast<int64_t>(groups.size()), input, output,
                         out_features);
  return true;
}

}  // namespace

void bind_low_rank(nb::module_& m) {
  nb::class_<LowRankMatrix>(m, "LowRankMatrix")
      .def(nb::init<int64_t, int64_t, int64_t, int>())
      .def("add", &LowRankMatrix::add)
      .def_prop_ro("nbytes", &LowRankMatrix::nbytes);
  m.def("add_low_rank", add_low_rank);
}

}  // namespace quire
