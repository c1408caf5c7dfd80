#include "runtime/experts.h"

#include <algorithm>
#include <numeric>

#include "runtime/thread_pool.h"

namespace quire {
namespace {

constexpr int64_t panel_width = LinearWeights::panel_width;
static_assert(panel_width == QuantizedWeights::panel_width, "both are cut alike");

// Routed rows in the order of their experts; within an expert in the order they came.
struct Grouping {
  std::vector<int32_t> sources;  // row of x by place
  std::vector<int32_t> places;   // by (row of x, j)
  std::vector<int64_t> starts;   // first place of each expert, and the end
};

Grouping group(const ExpertRoutes& routes, size_t num_experts) {
  const int64_t count = routes.num_rows * routes.top_k;
  Grouping found;
  found.starts.assign(num_experts + 1, 0);
  for (int64_t i = 0; i < count; ++i) found.starts[static_cast<size_t>(routes.ids[i]) + 1] += 1;
  std::partial_sum(found.starts.begin(), found.starts.end(), found.starts.begin());
  found.sources.resize(static_cast<size_t>(count));
  found.places.resize(static_cast<size_t>(count));
  std::vector<int64_t> next(found.starts.begin(), found.starts.end() - 1);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = next[static_cast<size_t>(routes.ids[i])]++;
    found.places[static_cast<size_t>(i)] = static_cast<int32_t>(place);
    found.sources[static_cast<size_t>(place)] = static_cast<int32_t>(i / routes.top_k);
  }
  return found;
}

// Some panels of one matrix, times the rows of its expert.
struct Piece {
  const ExpertMatrix* matrix;
  int64_t first_row, num_rows;
  int64_t begin, end;  // panels
};

void skip_outputs(LinearWeights&, int64_t) {}
void skip_outputs(QuantizedWeights& weights, int64_t outputs) {
  if (weights.outliers.starts) weights.outliers.starts += outputs;
}

// The same matrix with panels begin .. end - 1 only: panels are contiguous, whatever is in them.
template <class Weights>
Weights panels_of(const Weights& weights, int64_t begin, int64_t end) {
  Weights part = weights;
  part.data += begin * weights.panel_bytes();
  part.out_features = std::min(weights.out_features, end * panel_width) - begin * panel_width;
  if (weights.bias) part.bias += begin * panel_width;
  skip_outputs(part, begin * panel_width);
  return part;
}

int64_t num_panels(const ExpertMatrix& matrix) {
  return matrix.floats ? matrix.floats->num_panels() : matrix.quantized->num_panels();
}

int64_t panel_bytes(const ExpertMatrix& matrix) {
  return matrix.floats ? matrix.floats->panel_bytes() : matrix.quantized->panel_bytes();
}

// Each piece packs the rows it multiplies, which is worth its while for some panels only.
int64_t least_panels(const ExpertMatrix& matrix, int64_t num_rows) {
  if (num_rows > 8) return 24;
  return std::max<int64_t>(num_rows > 1 ? 8 : 4, (256 << 10) / panel_bytes(matrix));
}

// About how many pieces a job has; little work is one piece per matrix.
constexpr int64_t wanted_pieces = 32;
constexpr int64_t small_work = 4 << 20;

int64_t work(const ExpertMatrix& matrix, int64_t num_rows) {
  return num_panels(matrix) * panel_bytes(matrix) * (4 + num_rows);
}

// Cut the products of all experts into pieces of similar work.
std::vector<Piece> cut(const ExpertProducts& products, const std::vector<int64_t>& starts) {
  int64_t total = 0;
  std::vector<Piece> whole;
  for (size_t expert = 0; expert < products.size(); ++expert) {
    const int64_t num_rows = starts[expert + 1] - starts[expert];
    if (num_rows == 0) continue;
    for (const ExpertMatrix& matrix : products[expert]) {
      total += work(matrix, num_rows);
      whole.push_back({&matrix, starts[expert], num_rows, 0, num_panels(matrix)});
    }
  }
  if (total < small_work) return whole;
  std::vector<Piece> pieces;
  for (const Piece& all : whole) {
    const int64_t share = wanted_pieces * work(*all.matrix, all.num_rows) / total + 1;
    const int64_t most = std::max<int64_t>(1, all.end / least_panels(*all.matrix, all.num_rows));
    const int64_t count = std::min(share, most);
    for (int64_t i = 0; i < count; ++i) {
      Piece piece = all;
      piece.begin = i * all.end / count;
      piece.end = (i + 1) * all.end / count;
      pieces.push_back(piece);
    }
  }
  return pieces;
}

// out (R, columns) = the product of each expert on its rows of x (R, in_features).
void multiply(const ExpertProducts& products, const std::vector<int64_t>& starts, const float* x,
              float* out, int64_t columns) {
  const std::vector<Piece> pieces = cut(products, starts);
  const auto run = [&](int64_t index) {
    const Piece& piece = pieces[static_cast<size_t>(index)];
    const ExpertMatrix& matrix = *piece.matrix;
    const float* rows = x + piece.first_row * matrix.in_features();
    float* to = out + piece.first_row * columns + matrix.first_column + piece.begin * panel_width;
    if (matrix.floats)
      kernels().linear(panels_of(*matrix.floats, piece.begin, piece.end), rows, piece.num_rows, to,
                       columns);
    else
      kernels().linear_quantized(panels_of(*matrix.quantized, piece.begin, piece.end), rows,
                                 piece.num_rows, to, columns);
  };
  parallel_for(static_cast<int64_t>(pieces.size()), run);
}

void gate_up_of(const ExpertStack& stack, const ExpertRoutes& routes, const Grouping& rows,
                const ExpertBuffers& buffers) {
  const auto count = static_cast<int64_t>(rows.sources.size());
  kernels().gather_rows(routes.x, rows.sources.data(), count, stack.width, buffers.grouped);
  multiply(stack.gate_up, rows.starts, buffers.grouped, buffers.hidden, 2 * stack.middle);
}

// The gathered inputs are done with: their memory takes the experts' outputs.
void down_of(const ExpertStack& stack, const Grouping& rows, const ExpertBuffers& buffers) {
  const auto count = static_cast<int64_t>(rows.sources.size());
  kernels().gated_activation(buffers.hidden, stack.activation, count, stack.middle,
                             buffers.activated);
  multiply(stack.down, rows.starts, buffers.activated, buffers.grouped, stack.width);
}

void combine_of(const ExpertStack& stack, const ExpertRoutes& routes, const Grouping& rows,
                const float* grouped, float* out) {
  kernels().combine_experts(grouped, rows.places.data(), routes.weights, routes.num_rows,
                            routes.top_k, stack.width, out);
}

}  // namespace

void multiply_grouped(const ExpertProducts& products, const std::vector<int64_t>& starts,
                      const float* x, float* out, int64_t columns) {
  multiply(products, starts, x, out, columns);
}

void run_experts(const ExpertStack& stack, const ExpertRoutes& routes, const ExpertBuffers& buffers,
                 float* out) {
  if (routes.num_rows * routes.top_k == 0) return;
  const Grouping rows = group(routes, stack.down.size());
  gate_up_of(stack, routes, rows, buffers);
  down_of(stack, rows, buffers);
  combine_of(stack, routes, rows, buffers.grouped, out);
}

void multiply_gate_up(const ExpertStack& stack, const ExpertRoutes& routes,
                      const ExpertBuffers& buffers, int32_t* places) {
  const Grouping rows = group(routes, stack.down.size());
  std::copy(rows.places.begin(), rows.places.end(), places);
  gate_up_of(stack, routes, rows, buffers);
}

void multiply_down(const ExpertStack& stack, const ExpertRoutes& routes,
                   const ExpertBuffers& buffers) {
  down_of(stack, group(routes, stack.down.size()), buffers);
}

void combine_rows(const ExpertStack& stack, const ExpertRoutes& routes, const float* grouped,
                  float* out) {
  combine_of(stack, routes, group(routes, stack.down.size()), grouped, out);
}

}  // namespace quire
