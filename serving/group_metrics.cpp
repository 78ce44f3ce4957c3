#include "serving/group_metrics.h"

#include <algorithm>

namespace kvlab {

void GroupMetrics::add_to(Group& group, const RequestRecord& r, bool judged, bool attained, double qoe) {
  constexpr double kOutputWeight = 2;
  GroupRow& row = group.row;
  ++row.requests;
  row.completed += r.outcome == Outcome::kCompleted ? 1 : 0;
  row.unfinished += r.outcome == Outcome::kUnfinished ? 1 : 0;
  row.judged += judged ? 1 : 0;
  row.attained += attained ? 1 : 0;
  row.service_tokens += (r.first_token != kNever ? r.prompt_tokens : 0) + kOutputWeight * r.output_tokens;
  if (qoe >= 0) {
    row.qoe_sum += qoe;
    ++row.followed;
  }
  if (r.scheduled != kNever) {
    row.prompt_tokens += r.prompt_tokens;
    row.hit_tokens += r.hit_tokens;
  }
  if (r.outcome != Outcome::kCompleted) return;
  if (r.output_tokens > 1) group.tpot.add(tpot_ns(r));
  group.ttft.add(ns(r.first_token - r.arrival));
  group.e2e.add(ns(r.last_token - r.arrival));
}

void GroupMetrics::add(const RequestRecord& r, bool judged, bool attained, double qoe) {
  if (has_fact(r.facts, Fact::kClass)) {
    Group& group = classes_[r.facts->request_class];
    group.row.name = r.facts->request_class.text();
    add_to(group, r, judged, attained, qoe);
  }
  if (has_fact(r.facts, Fact::kClient)) {
    Group& group = clients_[r.facts->client];
    group.row.name = std::to_string(r.facts->client);
    add_to(group, r, judged, attained, qoe);
  }
}

template <class Key>
std::vector<GroupRow> GroupMetrics::rows_of(std::map<Key, Group>& groups) {
  std::vector<GroupRow> rows;
  for (auto& [key, group] : groups) {
    group.row.ttft = group.ttft.finish();
    group.row.tpot = group.tpot.finish();
    group.row.e2e = group.e2e.finish();
    rows.push_back(group.row);
  }
  return rows;
}

GroupSummary GroupMetrics::finish() {
  GroupSummary summary{rows_of(classes_), rows_of(clients_), {}};
  std::vector<double> backlogged;
  for (const GroupRow& client : summary.clients)
    if (client.unfinished > 0) backlogged.push_back(client.service_tokens);
  if (backlogged.size() < 2) return summary;
  const auto [least, most] = std::minmax_element(backlogged.begin(), backlogged.end());
  summary.service_gap_tokens = *most - *least;
  return summary;
}

}  // namespace kvlab
