#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/time.h"
#include "traces/json_rows.h"

namespace kvlab {

// From a session's or subagent's start.
enum class SubagentTimes : std::uint8_t { kAuto, kAbsolute, kRelative };

// Start rounding in the tester's files.
inline constexpr Span kWekaRounding{100'000'000};

struct WekaCall {
  Span start{};  // from the session's start
  std::optional<Span> api_time, think_time;
  std::int32_t prompt_tokens = 0, output_tokens = 0;
  std::size_t ids_begin = 0, num_ids = 0;  // in WekaSession::ids
  std::int64_t line = 0;
  std::int32_t agent = 0;  // 0: the session's; subagents from 1
};

// By start, subagents included.
struct WekaSession {
  std::int64_t number = -1;
  std::int32_t block_size = 0;
  bool has_local_ids = true;
  std::vector<WekaCall> calls;
  std::vector<std::uint64_t> ids;
  std::set<std::string, std::less<>> models;
  std::uint64_t num_duplicates = 0, num_without_tokens = 0, num_empty_subagents = 0;

  [[nodiscard]] std::span<std::uint64_t> ids_of(const WekaCall& call) { return std::span(ids).subspan(call.ids_begin, call.num_ids); }
};

// Call finish() at the end.
class WekaSessionParser {
 public:
  static constexpr std::array<std::string_view, 9> kKeys{
      "id", "models", "block_size", "hash_id_scope", "tool_tokens", "system_tokens", "requests", "totals", "metadata"};
  WekaSessionParser(const InputPlace& place, SubagentTimes subagent_times) : place_(place), subagent_times_(subagent_times) {}
  void read_field(std::size_t key, JsonField& field);
  // Drops and counts duplicates and empty calls; sorts. Throws InputError for a missing field.
  WekaSession finish();

 private:
  // Call, or subagent with calls.
  struct Entry {
    std::string type;
    std::optional<Span> start;
    WekaCall call;
    bool has_prompt = false, has_output = false, has_requests = false;
    std::vector<WekaCall> nested;
  };
  void read_entries(JsonField& field, std::vector<WekaCall>& to, int depth);
  void read_entry_field(std::size_t key, JsonField& field, Entry& entry, int depth);
  void end_entry(Entry& entry, std::vector<WekaCall>& to);
  void end_subagent(Entry& entry, std::vector<WekaCall>& to);
  void drop_duplicates();

  const InputPlace& place_;
  SubagentTimes subagent_times_;
  WekaSession session_;
  bool has_requests_ = false;
  std::int32_t num_subagents_ = 0;
};

}  // namespace kvlab
