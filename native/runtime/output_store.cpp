#include "runtime/output_store.h"

#include <algorithm>

namespace quire {
namespace {

// A quarter of a tenant's outputs goes at once, if all are its own.
constexpr int64_t kSegments = 4;

}  // namespace

OutputStore::OutputStore(int64_t max_tokens, int32_t longest)
    : max_tokens_(max_tokens), segment_tokens_(max_tokens / kSegments), longest_(longest) {}

Tenant* OutputStore::enter(const std::string& key) {
  std::unique_ptr<Tenant>& tenant = tenants_[key];
  if (!tenant) {
    tenant = std::make_unique<Tenant>();
    tenant->key = key;
  }
  ++tenant->num_rows;
  return tenant.get();
}

void OutputStore::leave(Tenant* tenant) {
  --tenant->num_rows;
  forget_if_empty(tenant);
}

void OutputStore::add(Tenant* tenant, const int32_t* tokens, int64_t count) {
  // An output longer than a segment is kept in pieces, so that no segment is larger.
  while (count > 0 && segment_tokens_ > kSegmentTokens + 1) {
    OutputSegment* segment = segment_with_room(tenant);
    const int64_t room =
        segment_tokens_ - kSegmentTokens - 1 - static_cast<int64_t>(segment->tokens.size());
    const int64_t taken = std::min(count, room);
    segment->tokens.insert(segment->tokens.end(), tokens, tokens + taken);
    segment->tokens.push_back(kOutputEnd);
    num_tokens_ += taken + 1;
    by_age_.erase(segment->age);
    segment->age = next_age_++;
    by_age_[segment->age] = tenant;
    tokens += taken;
    count -= taken;
    while (num_tokens_ > max_tokens_) drop_oldest();
  }
}

OutputSegment* OutputStore::segment_with_room(Tenant* tenant) {
  auto& segments = tenant->segments;
  const int64_t full = segment_tokens_ - kSegmentTokens - 1;
  if (segments.empty() || static_cast<int64_t>(segments.back()->tokens.size()) >= full) {
    segments.push_back(std::make_unique<OutputSegment>(next_id_++, longest_));
    segments.back()->age = next_age_++;
    by_age_[segments.back()->age] = tenant;
    num_tokens_ += kSegmentTokens;
  }
  return segments.back().get();
}

void OutputStore::drop_oldest() {
  const auto [age, tenant] = *by_age_.begin();
  by_age_.erase(by_age_.begin());
  auto& segments = tenant->segments;
  const auto oldest = std::find_if(segments.begin(), segments.end(),
                                   [age = age](const auto& s) { return s->age == age; });
  num_tokens_ -= kSegmentTokens + static_cast<int64_t>((*oldest)->tokens.size());
  segments.erase(oldest);
  forget_if_empty(tenant);
}

void OutputStore::forget_if_empty(Tenant* tenant) {
  if (tenant->num_rows || !tenant->segments.empty()) return;
  tenants_.erase(tenants_.find(tenant->key));
}

int64_t OutputStore::extend(Tenant* tenant, int64_t operations) {
  int64_t spent = 0;
  for (const auto& segment : tenant->segments) {
    SuffixAutomaton& automaton = segment->automaton;
    const int64_t before = automaton.num_operations();
    const int64_t count = static_cast<int64_t>(segment->tokens.size());
    while (automaton.num_tokens() < count &&
           spent + automaton.num_operations() - before < operations)
      automaton.extend(segment->tokens[automaton.num_tokens()]);
    spent += automaton.num_operations() - before;
  }
  return spent;
}

size_t OutputStore::bytes() const {
  size_t bytes = 0;
  for (const auto& [key, tenant] : tenants_)
    for (const auto& segment : tenant->segments)
      bytes += segment->tokens.capacity() * sizeof(int32_t) + segment->automaton.bytes();
  return bytes;
}

}  // namespace quire
