// JSON lines with input_toks, output_toks, arrival_time, queued_ts, first_token_ts and last_token_ts in seconds. Also for unrecognised
// files, to report missing keys.
#include "traces/logs/engine_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_node.h"
#include "base/json_text.h"
#include "traces/logs/log_format.h"
#include "traces/seen_ids.h"

namespace kvlab {

namespace {

// 'request_id' as text; "": none.
std::string id_of(const nlohmann::json& row) {
  const auto found = row.is_object() ? row.find("request_id") : row.end();
  if (found == row.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

ServedRequest parse_row(const nlohmann::json& json, const std::string& where) {
  const JsonNode row(json, where);
  if (!json.is_object()) row.fail("not a JSON object");
  ServedRequest r;
  r.arrival_s = row.at("arrival_time").number();
  r.queued_s = row.at("queued_ts").number();
  r.first_token_s = row.at("first_token_ts").number();
  r.last_token_s = row.at("last_token_ts").number();
  const double tokens = row.at("output_toks").number();
  if (!(tokens >= 1 && tokens < 1e9) || tokens != std::floor(tokens))
    throw InputError(fmt::format("{}: 'output_toks' = {} is no count from 1", where, tokens));
  r.output_tokens = static_cast<std::int64_t>(tokens);
  if (r.first_token_s < r.queued_s) throw InputError(where + ": 'first_token_ts' comes before 'queued_ts'");
  if (r.last_token_s < r.first_token_s) throw InputError(where + ": 'last_token_ts' comes before 'first_token_ts'");
  return r;
}

}  // namespace

RealLog read_engine_log(const std::string& text, const std::string& file) {
  RealLog log;
  SeenIds seen;
  LeftOut repeated;
  std::size_t line_number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    ++line_number;
    const std::string line = text.substr(at, end - at);
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      const std::string where = fmt::format("{}:{}", file, line_number);
      const nlohmann::json row = parse_json(line, where);
      const std::string id = id_of(row);
      if (!id.empty() && !seen.is_first(id))
        repeated.add(kRepeatedId);
      else
        log.requests.push_back(parse_row(row, where));
    }
    at = end + 1;
  }
  log.note = repeated.note(log.requests.size());
  return log;
}

}  // namespace kvlab
