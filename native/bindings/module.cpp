// The Python module quire._native: nothing but registration.
#include <nanobind/nanobind.h>

NB_MODULE(_native, m) { m.doc() = "Native kernels of Quire"; }
