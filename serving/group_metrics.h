#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "policies/request.h"
#include "serving/metrics.h"

namespace kvlab {

struct GroupRow {
  std::string name;  // class, or client number
  std::uint64_t requests = 0, completed = 0, unfinished = 0;
  std::uint64_t judged = 0, attained = 0;  // by the request's own targets if any
  Distribution ttft, tpot, e2e;            // ns, of completed requests; TPOT with at least two tokens
  // Prompts of scheduled requests, and their cached tokens at first admission.
  std::int64_t prompt_tokens = 0, hit_tokens = 0;
  double service_tokens = 0;  // prompt tokens after the first token, plus twice the output tokens (VTC weights)
  double qoe_sum = 0;         // over the followed requests
  std::uint64_t followed = 0;
};

struct GroupSummary {
  std::vector<GroupRow> classes, clients;  // by name, by number; empty without the fact
  // Largest service difference of clients with unfinished requests at the run's end; absent with fewer than two. VTC (Sheng et al. 2024)
  // bounds it for clients that always have waiting requests.
  std::optional<double> service_gap_tokens;
};

class GroupMetrics {
 public:
  // qoe: below 0: not followed.
  void add(const RequestRecord& record, bool judged, bool attained, double qoe = -1);
  GroupSummary finish();

 private:
  struct Group {
    GroupRow row;
    Values ttft, tpot, e2e;
  };
  static void add_to(Group& group, const RequestRecord& record, bool judged, bool attained, double qoe);
  template <class Key>
  static std::vector<GroupRow> rows_of(std::map<Key, Group>& groups);

  std::map<ClassName, Group> classes_;
  std::map<std::int64_t, Group> clients_;
};

}  // namespace kvlab
