#include "traces/readers/weka_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/hash.h"
#include "traces/numbers.h"

namespace kvlab {

namespace {

constexpr std::int64_t kWekaUnitNs = 1'000'000'000;
constexpr int kDeepestSubagent = 16;  // nesting
enum SessionKey : std::uint8_t { kId, kModels, kBlockSize, kScope, kToolTokens, kSystemTokens, kRequests };
enum EntryKey : std::uint8_t { kTime, kType, kIn, kOut, kIds, kApiTime, kThinkTime, kNested, kModel };
// Keys after kModel are unused.
constexpr std::array<std::string_view, 22> kEntryKeys{
    "t",      "type",   "in",          "out",           "hash_ids",     "api_time",      "think_time",    "requests",
    "model",  "stop",   "ttft",        "input_types",   "output_types", "agent_id",      "subagent_type", "duration_ms",
    "models", "status", "tool_tokens", "system_tokens", "total_tokens", "tool_use_count"};

}  // namespace

void WekaSessionParser::read_field(std::size_t key, JsonField& field) {
  if (key == kId) session_.number = field.session();
  if (key == kBlockSize) session_.block_size = static_cast<std::int32_t>(field.integer(1, 1 << 20));
  if (key == kScope) {
    const std::string_view scope = field.text();
    if (scope != "local" && scope != "global") field.fail(quoted(scope) + " is neither 'local' nor 'global'");
    session_.has_local_ids = scope == "local";
  }
  if (key == kRequests) has_requests_ = true, read_entries(field, session_.calls, 0);
}

void WekaSessionParser::read_entries(JsonField& field, std::vector<WekaCall>& to, int depth) {
  if (depth > kDeepestSubagent) field.fail(fmt::format("subagents inside of subagents, more than {} deep", kDeepestSubagent));
  Entry entry;
  field.each_object(
      kEntryKeys, [&](std::size_t key, JsonField inner) { read_entry_field(key, inner, entry, depth); }, [&] { end_entry(entry, to); });
}

void WekaSessionParser::read_entry_field(std::size_t key, JsonField& field, Entry& entry, int depth) {
  WekaCall& call = entry.call;
  const auto tokens = [&] { return static_cast<std::int32_t>(field.integer(0, kMaxTokens, "; mend or remove the request")); };
  if (key == kTime) entry.start = field.time(kWekaUnitNs);
  if (key == kType) entry.type = field.text();
  if (key == kType && entry.type != "s" && entry.type != "n" && entry.type != "subagent")
    field.fail(kvlab::quoted(entry.type) + " is neither 's' (streaming), 'n' nor 'subagent'");
  if (key == kIn) entry.has_prompt = true, call.prompt_tokens = tokens();
  if (key == kOut) entry.has_output = true, call.output_tokens = tokens();
  if (key == kIds) {
    call.ids_begin = session_.ids.size();
    if (!field.is_null()) field.id_list(session_.ids);
    call.num_ids = session_.ids.size() - call.ids_begin;
  }
  if (key == kApiTime && !field.is_null()) call.api_time = field.time(kWekaUnitNs);
  if (key == kThinkTime && !field.is_null()) call.think_time = field.time(kWekaUnitNs);
  if (key == kNested) entry.has_requests = true, read_entries(field, entry.nested, depth + 1);
  if (key == kModel && !field.is_null()) session_.models.emplace(field.text());
}

void WekaSessionParser::end_entry(Entry& entry, std::vector<WekaCall>& to) {
  if (!entry.start) place_.fail("t", "missing in this request");
  if (entry.has_requests || entry.type == "subagent") {
    end_subagent(entry, to);
  } else {
    if (!entry.has_prompt) place_.fail("in", "missing in this request");
    if (!entry.has_output) place_.fail("out", "missing in this request");
    entry.call.start = *entry.start;
    entry.call.line = place_.line_number();
    to.push_back(entry.call);
  }
  entry = Entry{};
}

void WekaSessionParser::end_subagent(Entry& entry, std::vector<WekaCall>& to) {
  if (!entry.has_requests) place_.fail("requests", "missing in this subagent");
  const auto before_start = [&](const WekaCall& call) { return call.start + kWekaRounding < *entry.start; };
  const bool is_relative = subagent_times_ == SubagentTimes::kRelative ||
                           (subagent_times_ == SubagentTimes::kAuto && std::ranges::any_of(entry.nested, before_start));
  const std::int32_t agent = ++num_subagents_;
  if (entry.nested.empty()) ++session_.num_empty_subagents;
  for (WekaCall& call : entry.nested) {
    if (is_relative) call.start += *entry.start;
    if (call.agent == 0) call.agent = agent;
    to.push_back(call);
  }
}

void WekaSessionParser::drop_duplicates() {
  std::unordered_set<std::uint64_t> seen;
  const auto is_dropped = [&](const WekaCall& call) {
    std::uint64_t key = hash_combine(static_cast<std::uint64_t>(ns(call.start)), static_cast<std::uint64_t>(call.prompt_tokens));
    key = hash_combine(key, static_cast<std::uint64_t>(call.output_tokens));
    for (const std::uint64_t id : session_.ids_of(call)) key = hash_combine(key, id);
    if (!seen.insert(key).second) return ++session_.num_duplicates > 0;
    return (call.prompt_tokens == 0 || call.output_tokens == 0) && ++session_.num_without_tokens > 0;
  };
  std::erase_if(session_.calls, is_dropped);
}

WekaSession WekaSessionParser::finish() {
  if (!has_requests_) place_.fail("requests", "missing in this session");
  if (session_.block_size == 0 && !session_.ids.empty()) place_.fail("block_size", "missing in this session, whose requests have hash_ids");
  drop_duplicates();
  std::ranges::stable_sort(session_.calls, {}, &WekaCall::start);
  return std::move(session_);
}

}  // namespace kvlab
