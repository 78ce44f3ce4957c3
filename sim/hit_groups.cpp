#include "sim/hit_groups.h"

namespace kvlab {

void HitGroups::join(const std::string& kind, const std::string& name, std::int32_t prompt_tokens) {
  const auto [found, is_new] = places_.try_emplace(kind + "\n" + name, static_cast<std::uint32_t>(groups_.size()));
  if (is_new) groups_.push_back({kind, name});
  HitGroup& group = groups_[found->second];
  ++group.requests;
  group.prompt_tokens += prompt_tokens;
  of_requests_.push_back(found->second);
}

void HitGroups::add(const TraceRequest& r) {
  if (has_fact(r.facts, Fact::kClass)) join("class", std::string(r.facts->request_class.text()), r.prompt_tokens);
  if (has_fact(r.facts, Fact::kClient)) join("client", std::to_string(r.facts->client), r.prompt_tokens);
  if (r.session >= 0) join("turn", r.is_follow_up ? "later" : "first", r.prompt_tokens);
  begin_.push_back(of_requests_.size());
}

void HitGroups::count(std::size_t request, std::uint64_t lookups, std::uint64_t hits, std::vector<HitGroup>& groups) const {
  if (request + 1 >= begin_.size()) return;
  for (std::uint64_t i = begin_[request]; i < begin_[request + 1]; ++i) {
    HitGroup& group = groups[of_requests_[i]];
    group.lookups += lookups;
    group.hits += hits;
  }
}

}  // namespace kvlab
