#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "traces/trace.h"

namespace kvlab {

// Lookups of a group's requests.
struct HitGroup {
  std::string kind, name;  // kind: class, client or turn; name: class, client number, or "first" and "later" turns
  std::uint64_t requests = 0, lookups = 0, hits = 0;  // of blocks, as in HitRatio
  std::int64_t hit_tokens = 0, prompt_tokens = 0;

  bool operator==(const HitGroup&) const = default;
};

// Groups of a trace's requests. A request has one per such column.
class HitGroups {
 public:
  // Adds the next request.
  void add(const TraceRequest& request);
  [[nodiscard]] bool is_empty() const { return groups_.empty(); }
  // Without lookups.
  [[nodiscard]] const std::vector<HitGroup>& groups() const { return groups_; }
  // Adds a request's lookups. groups: as groups().
  void count(std::size_t request, std::uint64_t lookups, std::uint64_t hits, std::vector<HitGroup>& groups) const;

 private:
  void join(const std::string& kind, const std::string& name, std::int32_t prompt_tokens);

  std::vector<HitGroup> groups_;
  std::unordered_map<std::string, std::uint32_t> places_;  // by kind and name
  std::vector<std::uint32_t> of_requests_;                 // groups of each request
  std::vector<std::uint64_t> begin_{0};                    // [requests + 1] into of_requests_
};

}  // namespace kvlab
