#include "app/export/token_times.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <unordered_map>

#include "app/results/safe_files.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

// A step emits a token once all known tokens are computed.
class TokenCount {
 public:
  explicit TokenCount(std::int64_t prompt_tokens) : known_(prompt_tokens) {}
  // `tokens` after `before`. A repeated entry computes further layers.
  void add(std::int64_t tokens, std::int64_t before, std::int64_t end) {
    const bool is_same = tokens == tokens_ && before == before_;
    tokens_ = tokens, before_ = before;
    if (is_same && emits_) times_.back() = end;
    if (is_same) return;
    emits_ = before == known_ - tokens;
    if (!emits_) return;
    times_.push_back(end);
    ++known_;
  }
  // An equal entry is then new work: the request restarts.
  void preempt() { before_ = -1; }
  [[nodiscard]] const std::vector<std::int64_t>& times() const { return times_; }

 private:
  std::int64_t known_, tokens_ = 0, before_ = -1;
  bool emits_ = false;
  std::vector<std::int64_t> times_;
};

using TokenCounts = std::unordered_map<std::string, TokenCount>;

bool parse_tokens(std::string_view text, long long& tokens) { return parse_integer(text, tokens) && tokens >= 0; }

// "7:512@0 8:1@300 ": request:tokens@computed tokens before.
void add_batch(const std::string& batch, std::int64_t end, TokenCounts& counts, const fs::path& file) {
  for (std::size_t at = 0; at < batch.size();) {
    const std::size_t next = batch.find(' ', at), colon = batch.find(':', at), sign = batch.find('@', at);
    long long tokens = 0, before = 0;
    if (next == std::string::npos || colon > sign || sign > next || !parse_tokens(batch.substr(colon + 1, sign - colon - 1), tokens) ||
        !parse_tokens(batch.substr(sign + 1, next - sign - 1), before))
      throw InputError(fmt::format("{}: a step has a batch that is no list of request:tokens@before: '{}'", file.string(), batch));
    if (const auto count = counts.find(batch.substr(at, colon - at)); count != counts.end()) count->second.add(tokens, before, end);
    at = next + 1;
  }
}

void add_event(const nlohmann::json& event, TokenCounts& counts, const fs::path& file) {
  constexpr std::string_view kPreempted = "preempted ";
  const std::string type = event.value("ph", ""), name = event.value("name", "");
  if (type == "X" && event.contains("args") && event["args"].contains("batch")) {
    const double end_us = event.at("ts").get<double>() + event.at("dur").get<double>();
    add_batch(event["args"]["batch"].get<std::string>(), std::llround(end_us * 1000), counts, file);
  } else if (type == "i" && name.starts_with(kPreempted)) {
    if (const auto count = counts.find(name.substr(kPreempted.size())); count != counts.end()) count->second.preempt();
  }
}

// Parses event by event, since files are large.
void read_steps(const fs::path& file, TokenCounts& counts) {
  constexpr int kEventDepth = 2;
  const auto take = [&](int depth, nlohmann::json::parse_event_t part, nlohmann::json& value) {
    if (depth != kEventDepth || part != nlohmann::json::parse_event_t::object_end) return true;
    add_event(value, counts, file);
    return false;
  };
  std::ifstream stream(file, std::ios::binary);
  try {
    [[maybe_unused]] const auto rest = nlohmann::json::parse(stream, take);
  } catch (const nlohmann::json::exception& e) {
    throw InputError(file.string() + ": cannot be read: " + e.what());
  }
}

bool has_all_tokens(const std::vector<std::int64_t>& times, const RequestRow& r) {
  return !times.empty() && std::ssize(times) == r.output_tokens && times.front() == *r.first_token_ns && times.back() == *r.last_token_ns;
}

}  // namespace

TokenTimes token_times(const ExportedRun& run, const std::vector<RequestRow>& requests) {
  const fs::path file = run.folder() / "trace.json";
  if (kind_of(file) != PathKind::kFile) return {{}, "the run has no trace.json, which 'trace: {perfetto: true}' writes"};
  TokenCounts counts;
  for (const RequestRow& r : requests) counts.emplace(r.request, TokenCount(r.prompt_tokens));
  read_steps(file, counts);
  TokenTimes found;
  for (const RequestRow& r : requests) {
    if (!r.is_completed()) continue;
    const std::vector<std::int64_t>& times = counts.at(r.request).times();
    if (!has_all_tokens(times, r)) return {{}, fmt::format("the steps in trace.json do not give all tokens of request {}", r.request)};
    found.of_request.emplace(r.request, times);
  }
  return found;
}

}  // namespace kvlab
