#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "policies/request.h"
#include "serving/metrics.h"

namespace kvlab {

// The service that one class or one client received.
struct GroupRow {
  std::string name;  // of the class, or the client's number
  std::uint64_t requests = 0, completed = 0, unfinished = 0;
  std::uint64_t judged = 0, attained = 0;  // as of the whole run; with the request's own targets where it has some
  Distribution ttft, tpot, e2e;            // ns, of completed requests; TPOT of those with two tokens and more
  // Prompts of scheduled requests, and the tokens of these that the first admission found in the cache.
  std::int64_t prompt_tokens = 0, hit_tokens = 0;
  double service_tokens = 0;   // prompt tokens, once the first token is out, and twice the output tokens (the weights of VTC)
  double qoe_sum = 0;          // of the requests whose quality of experience was followed,
  std::uint64_t followed = 0;  // so many
};

struct GroupSummary {
  std::vector<GroupRow> classes, clients;  // by name, by number; empty where no request has that fact
  // Largest difference of service between two clients that have unfinished requests at the run's end (VTC, Sheng et al. 2024, bounds it
  // for clients that always have waiting requests). Absent with fewer than two such clients.
  std::optional<double> service_gap_tokens;
};

// Collects requests by class and by client. Costs nothing where requests have no facts.
class GroupMetrics {
 public:
  // judged, attained: of the request, by its own targets. qoe: its quality of experience; below 0: not followed.
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
