// The Python module quire._native: nothing but registration.
#include <nanobind/nanobind.h>

namespace quire {
void bind_linear(nanobind::module_& m);
void bind_runtime(nanobind::module_& m);
}  // namespace quire

NB_MODULE(_native, m) {
  m.doc() = "Native kernels of Quire";
  quire::bind_linear(m);
  quire::bind_runtime(m);
}
