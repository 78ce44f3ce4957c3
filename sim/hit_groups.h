#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "traces/trace.h"

namespace kvlab {

// Lookups of the requests of one group.
struct HitGroup {
  std::string kind, name;  // kind: class, client or turn; name: of the class, the client's number, or "first" and "later" turns of sessions
  std::uint64_t requests = 0, lookups = 0, hits = 0;  // of blocks, as in HitRatio
  std::int64_t hit_tokens = 0, prompt_tokens = 0;

  bool operator==(const HitGroup&) const = default;
};

// The groups that the requests of a trace belong to. A request has one for each such column of its trace.
class HitGroups {
 public:
  // Adds the next request of the trace.
  void add(const TraceRequest& request);
  [[nodiscard]] bool is_empty() const { return groups_.empty(); }
  // Groups without lookups: to be counted.
  [[nodiscard]] const std::vector<HitGroup>& groups() const { return groups_; }
  // Adds a request's lookups to its groups. groups: as groups().
  void count(std::size_t request, std::uint64_t lookups, std::uint64_t hits, std::vector<HitGroup>& groups) const;

 private:
  void join(const std::string& kind, const std::string& name, std::int32_t prompt_tokens);

  std::vector<HitGroup> groups_;
  std::unordered_map<std::string, std::uint32_t> places_;  // of kind and name
  std::vector<std::uint32_t> of_requests_;                 // groups of each request
  std::vector<std::uint64_t> begin_{0};                    // [requests + 1] into of_requests_
};

}  // namespace kvlab
