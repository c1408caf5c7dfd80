// The Python module quire._native: nothing but registration.
#include <nanobind/nanobind.h>

namespace quire {
void bind_attention(nanobind::module_& m);
void bind_latent_attention(nanobind::module_& m);
void bind_draft_chain(nanobind::module_& m);
void bind_experts(nanobind::module_& m);
void bind_gguf(nanobind::module_& m);
void bind_linear(nanobind::module_& m);
void bind_low_rank(nanobind::module_& m);
void bind_ngram(nanobind::module_& m);
void bind_ops(nanobind::module_& m);
void bind_patterns(nanobind::module_& m);
void bind_probe(nanobind::module_& m);
void bind_quantized(nanobind::module_& m);
void bind_quantizing(nanobind::module_& m);
void bind_runtime(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);
void bind_shared_group(nanobind::module_& m);
}  // namespace quire

NB_MODULE(_native, m) {
  // What lives as long as the process is no leak, and its users read stderr.
  nanobind::set_leak_warnings(false);
  m.doc() = "Native kernels of Quire";
  quire::bind_attention(m);
  quire::bind_latent_attention(m);
  quire::bind_gguf(m);
  quire::bind_linear(m);
  quire::bind_low_rank(m);
  quire::bind_ngram(m);
  quire::bind_ops(m);
  quire::bind_patterns(m);
  quire::bind_probe(m);
  quire::bind_quantized(m);
  quire::bind_quantizing(m);
  quire::bind_draft_chain(m);
  quire::bind_experts(m);
  quire::bind_runtime(m);
  quire::bind_sampling(m);
  quire::bind_shared_group(m);
}
