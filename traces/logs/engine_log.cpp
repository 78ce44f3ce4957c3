// An engine's own log: one JSON object per line with input_toks, output_toks, arrival_time, queued_ts, first_token_ts and last_token_ts, in
// seconds. Files that no other format recognises are read as this one, so that its errors say what is missing.
#include "traces/logs/engine_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_node.h"
#include "base/json_text.h"

namespace kvlab {

namespace {

ServedRequest parse_row(const std::string& line, const std::string& where) {
  const nlohmann::json json = parse_json(line, where);
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

RequestLog read_engine_log(const std::string& text, const std::string& file) {
  RequestLog log;
  std::size_t line_number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    ++line_number;
    const std::string line = text.substr(at, end - at);
    if (line.find_first_not_of(" \t\r") != std::string::npos)
      log.requests.push_back(parse_row(line, fmt::format("{}:{}", file, line_number)));
    at = end + 1;
  }
  return log;
}

}  // namespace kvlab
