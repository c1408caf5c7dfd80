// Native calls that are kept, to be made again by one call of Python.
#pragma once
#include <nanobind/nanobind.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace quire {

namespace nb = nanobind;

// Calls in the order they were made while this was open, with the addresses they had; what lies
// there is read anew each time, and checked anew where a call depends on it.
class Recording {
 public:
  // False, and nothing done, when what it reads is out of range.
  using Call = std::function<bool()>;

  // The one that keeps the calls of this thread now, or null.
  static Recording*& open() {
    static thread_local Recording* recording = nullptr;
    return recording;
  }

  void add(int64_t work, Call call) {
    calls_.push_back(std::move(call));
    most_work_ = std::max(most_work_, work);
  }
  // Keep what a call points into.
  void hold(nb::handle object) { held_.push_back(nb::borrow(object)); }

  bool replay() const {
    return std::all_of(calls_.begin(), calls_.end(), [](const Call& call) { return call(); });
  }
  // Of its largest call, in the unit of GilRelease.
  int64_t most_work() const { return most_work_; }

 private:
  std::vector<Call> calls_;
  std::vector<nb::object> held_;
  int64_t most_work_ = 0;
};

}  // namespace quire
