// The experts' MLPs of one mixture-of-experts layer as grouped products: rows sorted by expert, the
// panels of all experts' matrices shared out over the threads in one job, so that a few rows of
// many experts use every core.
#pragma once

#include <cstdint>
#include <vector>

#include "include/kernels.h"

namespace quire {

// One packed matrix of an expert, float or quantized (exactly one is set), whose outputs are
// columns first_column ... of the product. Not owned.
struct ExpertMatrix {
  const LinearWeights* floats;
  const QuantizedWeights* quantized;
  int64_t first_column;

  int64_t in_features() const { return floats ? floats->in_features : quantized->given_inputs(); }
  int64_t out_features() const { return floats ? floats->out_features : quantized->out_features; }
};

// By expert, the matrices that lie side by side in its product.
using ExpertProducts = std::vector<std::vector<ExpertMatrix>>;

// out (R, columns) = the product of each expert on its rows of x (R, in_features), which are
// starts[e] .. starts[e + 1] - 1. A row's bits depend on that row alone.
void multiply_grouped(const ExpertProducts& products, const std::vector<int64_t>& starts,
                      const float* x, float* out, int64_t columns);

struct ExpertStack {
  int64_t width;   // D, of the layer's input and output
  int64_t middle;  // M
  Activation activation;
  ExpertProducts gate_up;  // D -> 2 M
  ExpertProducts down;     // M -> D
};

// T rows and where they go.
struct ExpertRoutes {
  const float* x;        // (T, D)
  const int32_t* ids;    // (T, top_k), all below the number of experts
  const float* weights;  // (T, top_k)
  int64_t num_rows, top_k;
};

// Memory for R = T * top_k routed rows.
struct ExpertBuffers {
  float* grouped;    // (R, D)
  float* hidden;     // (R, 2 M)
  float* activated;  // (R, M)
};

// out (T, D)[t] = sum_j weights[t, j] * down[e](act(gate_up[e](x[t]))), e = ids[t, j], in the order
// of j. A row's bits depend on that row alone.
void run_experts(const ExpertStack& stack, const ExpertRoutes& routes, const ExpertBuffers& buffers,
                 float* out);

// The same in parts, for what is done to products in between: from x to grouped and hidden, whose
// row places (T, top_k)[t, j] is that of the routed row (t, j);
void multiply_gate_up(const ExpertStack& stack, const ExpertRoutes& routes,
                      const ExpertBuffers& buffers, int32_t* places);
// from hidden to activated, and from there to grouped, in the same order;
void multiply_down(const ExpertStack& stack, const ExpertRoutes& routes,
                   const ExpertBuffers& buffers);
// and from there to out.
void combine_rows(const ExpertStack& stack, const ExpertRoutes& routes, const float* grouped,
                  float* out);

}  // namespace quire
