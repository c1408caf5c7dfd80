// What the binding files share: buffers checked for memory safety, and when to release the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>

#include "bindings/recording.h"
#include "include/kernels.h"

namespace quire {

namespace nb = nanobind;

// A C-contiguous Python buffer (a numpy array) for the length of a call.
//
// Checks what memory safety needs: contiguity, at least `min_bytes`, writability; and the size of
// an element unless 0, because int64 read as int32 would be wrong without a word. Shapes are the
// business of kernels/<op>.py. Needs the GIL at both ends.
class Buffer {
 public:
  Buffer(nb::handle object, size_t min_bytes, bool writable, size_t element = 0) {
    // PyBUF_SIMPLE demands C-contiguity and asks for nothing that takes time.
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE))
      throw nb::python_error();
    const size_t bytes = static_cast<size_t>(view_.len);
    const size_t size = static_cast<size_t>(view_.itemsize);
    if (bytes < min_bytes)
      refuse("buffer must have at least %zu bytes; got %zu.", min_bytes, bytes);
    if (element && size != element) refuse("elements must have %zu bytes; got %zu.", element, size);
    if (Recording* recording = Recording::open()) recording->hold(object);
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return view_.buf; }
  size_t bytes() const { return static_cast<size_t>(view_.len); }

 private:
  [[noreturn]] void refuse(const char* rule, size_t wanted, size_t got) {
    PyBuffer_Release(&view_);
    PyErr_Format(PyExc_ValueError, (std::string("[native] ") + rule).c_str(), wanted, got);
    throw nb::python_error();
  }

  Py_buffer view_;
};

template <class T>
class Input {
 public:
  Input(nb::handle object, int64_t count)
      : buffer_(object, static_cast<size_t>(count) * sizeof(T), false, sizeof(T)) {}
  operator const T*() const { return get(); }
  const T* get() const { return static_cast<const T*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

template <class T>
class Output {
 public:
  Output(nb::handle object, int64_t count)
      : buffer_(object, static_cast<size_t>(count) * sizeof(T), true, sizeof(T)) {}
  operator T*() const { return get(); }
  T* get() const { return static_cast<T*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

// Releases the GIL around work worth it: a thread that lets go may wait 5 ms to get it back, so
// calls of a few microseconds keep it. `work` counts elements touched, about 10 per nanosecond.
class GilRelease {
 public:
  explicit GilRelease(int64_t work) {
    if (work > 100000) release_.emplace();
  }

 private:
  std::optional<nb::gil_scoped_release> release_;
};

// Make a call of some work, and keep it where a recording is open; `again` is what is kept.
template <class Call, class Again>
bool make_call(int64_t work, Call call, Again again) {
  bool done;
  {
    const GilRelease release(work);
    done = call();
  }
  if (Recording* recording = Recording::open(); recording && done) recording->add(work, again);
  return done;
}

template <class Call>
bool make_call(int64_t work, Call call) {
  return make_call(work, call, call);
}

}  // namespace quire
