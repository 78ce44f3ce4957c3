#include "app/results/request_row.h"

#include "base/csv.h"
#include "base/text.h"

namespace kvlab {

namespace {

double time_at(const CsvTable& table, std::size_t row, std::string_view column) {
  double value = 0;
  if (table.has(column)) parse_real(table.rows[row][table.at(column)], value);
  return value;
}

RequestRow row_at(const CsvTable& table, std::size_t i) {
  const auto text = [&](std::string_view column) { return table.rows[i][table.at(column)]; };
  RequestRow r;
  r.request = text("request"), r.replica = text("replica"), r.session = text("session"), r.state = text("state");
  r.arrival_ns = table.whole_if_any(i, "arrival_ns"), r.queued_ns = table.whole_if_any(i, "queued_ns");
  r.scheduled_ns = table.whole_if_any(i, "scheduled_ns"), r.first_token_ns = table.whole_if_any(i, "first_token_ns");
  r.last_token_ns = table.whole_if_any(i, "last_token_ns");
  r.prompt_tokens = table.whole(i, "prompt_tokens"), r.output_tokens = table.whole(i, "output_tokens");
  r.hit_tokens = table.whole(i, "hit_tokens"), r.preemptions = table.whole(i, "preemptions");
  r.prefill_policy_ns = time_at(table, i, "prefill_policy_ns"), r.decode_policy_ns = time_at(table, i, "decode_policy_ns");
  return r;
}

}  // namespace

std::optional<double> RequestRow::tpot_ms() const {
  if (output_tokens < 2) return std::nullopt;
  return static_cast<double>(*last_token_ns - *first_token_ns) * 1e-6 / static_cast<double>(output_tokens - 1);
}

std::vector<RequestRow> read_request_rows(const std::filesystem::path& file) {
  const CsvTable table = read_csv(file);
  std::vector<RequestRow> rows;
  rows.reserve(table.rows.size());
  for (std::size_t i = 0; i < table.rows.size(); ++i) rows.push_back(row_at(table, i));
  return rows;
}

}  // namespace kvlab
