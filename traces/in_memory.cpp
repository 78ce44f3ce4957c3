#include "traces/in_memory.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "base/error.h"

namespace kvlab {

namespace {

// Unsorted traces counted from their first row have negative arrivals.
constexpr std::int64_t kArrivalShift = std::int64_t{1} << 60;

}  // namespace

InMemoryTrace::InMemoryTrace(std::unique_ptr<TraceSource> source) : source_(std::move(source)) {
  TraceRequest request;
  while (source_->next(request)) {
    if (size() == std::numeric_limits<std::uint32_t>::max()) throw InputError("a trace held in memory has at most 4,294,967,295 requests");
    append(request);
  }
  when_ns_.shrink_to_fit();
  prompt_tokens_.shrink_to_fit();
  output_tokens_.shrink_to_fit();
  session_.shrink_to_fit();
  hashes_.shrink_to_fit();
  hashes_end_.shrink_to_fit();
  facts_.shrink_to_fit();
}

void InMemoryTrace::append(const TraceRequest& request) {
  when_ns_.push_back(request.is_follow_up ? -1 - ns(request.delay) : ns(request.arrival) + kArrivalShift);
  if (request.session >= 0 && session_.empty()) session_.assign(size(), -1);
  if (!request.hashes.empty() && hashes_end_.empty()) hashes_end_.assign(size(), 0);
  if (!request.hashes.empty()) set_hash_tokens(request.hash_tokens);
  if (request.facts != nullptr || !facts_.empty()) {
    facts_.resize(size());
    has_facts_.resize(size());
    facts_.push_back(request.facts != nullptr ? *request.facts : RequestFacts{});
    has_facts_.push_back(request.facts != nullptr);
  }
  prompt_tokens_.push_back(request.prompt_tokens);
  output_tokens_.push_back(request.output_tokens);
  if (request.session >= 0 || !session_.empty()) session_.push_back(request.session);
  hashes_.insert(hashes_.end(), request.hashes.begin(), request.hashes.end());
  if (!hashes_.empty()) hashes_end_.push_back(hashes_.size());
}

void InMemoryTrace::set_hash_tokens(std::int32_t hash_tokens) {
  if (hash_tokens_ == 0) hash_tokens_ = hash_tokens;
  if (hash_tokens == hash_tokens_ && hash_tokens_of_.empty()) return;
  hash_tokens_of_.resize(size() + 1, hash_tokens_);
  hash_tokens_of_.back() = hash_tokens;
}

TraceRequest InMemoryTrace::at(std::size_t i) const {
  const std::size_t k = stored(i);
  TraceRequest request;
  request.is_follow_up = when_ns_[k] < 0;
  if (request.is_follow_up)
    request.delay = Span(-1 - when_ns_[k]);
  else
    request.arrival = Time(Span(when_ns_[k] - kArrivalShift));
  request.prompt_tokens = prompt_tokens_[k];
  request.output_tokens = output_tokens_[k];
  if (!session_.empty()) request.session = session_[k];
  if (!facts_.empty() && has_facts_[k]) request.facts = &facts_[k];
  if (!hashes_end_.empty()) {
    const std::uint64_t begin = k == 0 ? 0 : hashes_end_[k - 1];
    request.hashes = std::span(hashes_).subspan(begin, hashes_end_[k] - begin);
    if (!request.hashes.empty()) request.hash_tokens = k < hash_tokens_of_.size() ? hash_tokens_of_[k] : hash_tokens_;
  }
  return request;
}

bool InMemoryTrace::next(TraceRequest& request) {
  if (next_ == size()) return false;
  request = at(next_++);
  return true;
}

void InMemoryTrace::set_arrival(std::size_t i, Time arrival) { when_ns_[stored(i)] = ns(arrival) + kArrivalShift; }

void InMemoryTrace::sort_by_arrival() {
  const auto count = static_cast<std::uint32_t>(size());
  if (order_.empty()) {
    order_.resize(count);
    std::iota(order_.begin(), order_.end(), 0U);
  }
  // Follow-ups sort by their session's first request.
  std::vector<std::uint32_t> head(count);
  std::unordered_map<std::int64_t, std::uint32_t> latest;
  std::int64_t earliest = kArrivalShift;
  for (const std::uint32_t k : order_) {
    if (when_ns_[k] >= 0) {
      head[k] = k;
      earliest = std::min(earliest, when_ns_[k]);
      if (!session_.empty() && session_[k] >= 0) latest[session_[k]] = k;
    } else {
      const auto found = session_.empty() ? latest.end() : latest.find(session_[k]);
      if (found == latest.end()) throw InputError("a follow-up request has no request of its session before it");
      head[k] = found->second;
    }
  }
  std::vector<std::uint32_t> rank(count);  // old position, to order equal arrivals
  for (std::uint32_t place = 0; place < count; ++place) rank[order_[place]] = place;
  std::stable_sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
    const std::int64_t at_a = when_ns_[head[a]];
    const std::int64_t at_b = when_ns_[head[b]];
    return at_a != at_b ? at_a < at_b : rank[head[a]] < rank[head[b]];
  });
  for (std::int64_t& when : when_ns_) {
    if (when >= 0) when += kArrivalShift - earliest;
  }
  rewind();
}

std::size_t InMemoryTrace::memory_bytes() const {
  return when_ns_.capacity() * sizeof(std::int64_t) + (prompt_tokens_.capacity() + output_tokens_.capacity()) * sizeof(std::int32_t) +
         session_.capacity() * sizeof(std::int64_t) + hashes_.capacity() * sizeof(std::uint64_t) +
         hashes_end_.capacity() * sizeof(std::uint64_t) + hash_tokens_of_.capacity() * sizeof(std::int32_t) +
         facts_.capacity() * sizeof(RequestFacts) + order_.capacity() * sizeof(std::uint32_t);
}

}  // namespace kvlab
