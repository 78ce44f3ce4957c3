#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <unordered_set>

#include "base/error.h"
#include "base/hash.h"
#include "traces/json_rows.h"
#include "traces/readers/hashed_rows.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;

// From a session's or subagent's start.
enum class SubagentTimes : std::uint8_t { kAuto, kAbsolute, kRelative };

// Start rounding in the tester's files.
constexpr Span kWekaRounding{100'000'000};

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

  void read_field(std::size_t key, JsonField& field) {
    if (key == kId) session_.number = field.session();
    if (key == kBlockSize) session_.block_size = static_cast<std::int32_t>(field.integer(1, 1 << 20));
    if (key == kScope) {
      const std::string_view scope = field.text();
      if (scope != "local" && scope != "global") field.fail(quoted(scope) + " is neither 'local' nor 'global'");
      session_.has_local_ids = scope == "local";
    }
    if (key == kRequests) has_requests_ = true, read_entries(field, session_.calls, 0);
  }
  // Drops and counts duplicates and empty calls; sorts. Throws InputError for a missing field.
  WekaSession finish() {
    if (!has_requests_) place_.fail("requests", "missing in this session");
    if (session_.block_size == 0 && !session_.ids.empty())
      place_.fail("block_size", "missing in this session, whose requests have hash_ids");
    drop_duplicates();
    std::ranges::stable_sort(session_.calls, {}, &WekaCall::start);
    return std::move(session_);
  }

 private:
  static constexpr int kDeepestSubagent = 16;  // nesting
  enum SessionKey : std::uint8_t { kId, kModels, kBlockSize, kScope, kToolTokens, kSystemTokens, kRequests };
  enum EntryKey : std::uint8_t { kTime, kType, kIn, kOut, kIds, kApiTime, kThinkTime, kNested, kModel };
  // Keys after kModel are unused.
  static constexpr std::array<std::string_view, 22> kEntryKeys{
      "t",      "type",   "in",          "out",           "hash_ids",     "api_time",      "think_time",    "requests",
      "model",  "stop",   "ttft",        "input_types",   "output_types", "agent_id",      "subagent_type", "duration_ms",
      "models", "status", "tool_tokens", "system_tokens", "total_tokens", "tool_use_count"};
  // Call, or subagent with calls.
  struct Entry {
    std::string type;
    std::optional<Span> start;
    WekaCall call;
    bool has_prompt = false, has_output = false, has_requests = false;
    std::vector<WekaCall> nested;
  };

  void read_entries(JsonField& field, std::vector<WekaCall>& to, int depth) {
    if (depth > kDeepestSubagent) field.fail(fmt::format("subagents inside of subagents, more than {} deep", kDeepestSubagent));
    Entry entry;
    field.each_object(
        kEntryKeys, [&](std::size_t key, JsonField inner) { read_entry_field(key, inner, entry, depth); }, [&] { end_entry(entry, to); });
  }
  void read_entry_field(std::size_t key, JsonField& field, Entry& entry, int depth) {
    WekaCall& call = entry.call;
    const auto tokens = [&] { return static_cast<std::int32_t>(field.integer(0, kMaxTokens, "; mend or remove the request")); };
    if (key == kTime) entry.start = field.time(kSecondNs);
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
    if (key == kApiTime && !field.is_null()) call.api_time = field.time(kSecondNs);
    if (key == kThinkTime && !field.is_null()) call.think_time = field.time(kSecondNs);
    if (key == kNested) entry.has_requests = true, read_entries(field, entry.nested, depth + 1);
    if (key == kModel && !field.is_null()) session_.models.emplace(field.text());
  }
  void end_entry(Entry& entry, std::vector<WekaCall>& to) {
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
  void end_subagent(Entry& entry, std::vector<WekaCall>& to) {
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
  void drop_duplicates() {
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

  const InputPlace& place_;
  SubagentTimes subagent_times_;
  WekaSession session_;
  bool has_requests_ = false;
  std::int32_t num_subagents_ = 0;
};

// Weka's KV-cache tester (github.com/callanjfox/kv-cache-tester), published by AgentX: a JSON object per session, in files or a folder.
// Seconds from the session's start; no arrivals. Calls, with subagents', become one chain by start.
//
// `t` is a call's start, `api_time` the time to its last token (build_traces_from_neon.py). Pauses count from that end (end-to-start delays
// of AIPerf, weka_trace.py in src/aiperf/dataset/loader of ai-dynamo/aiperf). AgentX caps a session's idle time at 300 s
// (--trace-idle-gap-cap-seconds of scenario 'agentx', github.com/SemiAnalysisAI/agentx-harness): here each pause.
class Weka final : public RowReader {
 public:
  struct Options {
    explicit Options(Params& p)
        : delays(p.choice<Delays>("delays", {{"gaps", Delays::kGaps}, {"think_time", Delays::kThinkTime}, {"none", Delays::kNone}},
                                  Delays::kGaps,
                                  "weka: pause before a later call: gaps (its start minus the end of the calls before), think_time (as "
                                  "recorded, less the time in which other agents of the session ran), none")),
          idle_cap(p.seconds("idle_cap_s", 300, 0, 1e7,
                             "weka: longer pauses of a session are cut to this, and counted; AgentX: 300; its cap of 10 s on the pauses of "
                             "all sessions together is 'arrival: {closed_loop: {idle_cap_s: 10}}'")),
          subagent_times(p.choice<SubagentTimes>(
              "subagent_times",
              {{"auto", SubagentTimes::kAuto}, {"absolute", SubagentTimes::kAbsolute}, {"relative", SubagentTimes::kRelative}},
              SubagentTimes::kAuto,
              "weka: of a subagent's requests, to the session's start (absolute) or the subagent's; auto: relative where one of them is "
              "earlier than the subagent")),
          with_subagents(p.flag("subagents", true, "weka: false leaves their requests out, counted")) {}
    enum class Delays : std::uint8_t { kGaps, kThinkTime, kNone } delays;
    Span idle_cap;
    SubagentTimes subagent_times;
    bool with_subagents;
  };
  static constexpr bool kIsDocument = true;
  static bool recognises(std::string_view begin) {
    const auto has = [&](std::string_view key) { return begin.find(key) != std::string_view::npos; };
    const std::size_t first = begin.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos || (begin[first] != '{' && begin[first] != '[')) return false;
    return has("\"requests\"") && has("\"in\"") && has("\"t\"");
  }
  static bool recognises_folder(const std::string& path) {
    const std::vector<std::string> files = session_files(path);
    return !files.empty() && recognises(LineReader(files.front()).ahead());
  }

  Weka(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : RowReader(options, "t", 0), own_(own), documents_(std::make_unique<JsonDocuments>(std::move(lines), ignored())) {}
  Weka(const std::string& folder, const ReaderOptions& options, const Options& own)
      : RowReader(options, "t", 0), own_(own), files_(session_files(folder)) {
    open_next_file();
  }
  [[nodiscard]] bool has_arrivals() const override { return false; }

 private:
  static std::vector<std::string> session_files(const std::string& folder) {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(folder, fs::directory_options::skip_permission_denied)) {
      const std::string name = entry.path().filename().string();
      std::error_code error;
      const bool is_session = name.find(".json") != std::string::npos && !name.starts_with('.');
      if (is_session && entry.is_regular_file(error) && entry.file_size(error) > 0) files.push_back(entry.path().string());
    }
    std::ranges::sort(files);
    return files;
  }

  bool open_next_file() {
    if (next_file_ == files_.size()) return false;
    documents_ = std::make_unique<JsonDocuments>(std::make_unique<LineReader>(files_[next_file_++]), ignored());
    return true;
  }

  [[nodiscard]] const InputPlace& lines() const override { return documents_->lines(); }

  bool read_row(TraceRequest& request) override {
    return queue_.next(request, [&] { return read_session(); });
  }

  bool read_session() {
    for (;;) {
      WekaSessionParser parser(lines(), own_.subagent_times);
      if (documents_->next(WekaSessionParser::kKeys, [&](std::size_t key, JsonField field) { parser.read_field(key, field); })) {
        push_calls(parser.finish());
        return true;
      }
      if (!open_next_file()) return false;
    }
  }

  void push_calls(WekaSession session) {
    queue_.clear();
    if (session.number >= 0 && is_repeated(session.number, "id", "sessions")) return;
    if (session.number < 0) session.number = number_of_name(fmt::format("{}:{}", lines().name(), num_sessions_));
    ++num_sessions_;
    count("duplicate requests dropped", session.num_duplicates);
    count("requests without prompt or output tokens passed over", session.num_without_tokens);
    count("subagents without requests", session.num_empty_subagents);
    models_.merge(session.models);
    const WekaCall* latest = nullptr;  // of earlier calls, ends last
    std::int32_t turn = 0;
    for (const WekaCall& call : session.calls) {
      if (call.agent > 0 && !own_.with_subagents) {
        count("requests of subagents left out");
        continue;
      }
      count_overlap(call, latest);
      push_call(session, call, turn++, latest);
      if (latest == nullptr || end_of(call) >= end_of(*latest)) latest = &call;
    }
    if (turn == 0) count("sessions without requests");
  }

  static Span end_of(const WekaCall& call) { return call.start + call.api_time.value_or(Span{0}); }

  void count_overlap(const WekaCall& call, const WekaCall* latest) {
    num_calls_ += 1;
    if (latest == nullptr || call.start + kWekaRounding >= end_of(*latest)) return;
    num_serialized_ += 1;
    if (call.agent > 0) num_serialized_of_subagents_ += 1;
  }

  void push_call(WekaSession& session, const WekaCall& call, std::int32_t turn, const WekaCall* latest) {
    TraceRequest request;
    request.prompt_tokens = call.prompt_tokens;
    request.output_tokens = call.output_tokens;
    request.session = session.number;
    request.is_follow_up = turn > 0;
    if (latest != nullptr) request.delay = delay_of(call, *latest);
    const std::span<std::uint64_t> ids = session.ids_of(call);
    if (!ids.empty()) {
      check_ids(session, call);
      chain_ids(ids, session.block_size, session.has_local_ids ? mix64(static_cast<std::uint64_t>(session.number)) : 0);
      request.hash_tokens = session.block_size;
      request.hashes = ids;
    }
    RequestFacts facts;
    facts.program = session.number;
    facts.turn = turn;
    facts.request_class = ClassName(call.agent > 0 ? "subagent" : "agent");
    request.facts = &facts;
    queue_.push(request);
  }

  void check_ids(const WekaSession& session, const WekaCall& call) const {
    const std::int64_t most = (std::int64_t{call.prompt_tokens} + session.block_size - 1) / session.block_size;
    if (static_cast<std::int64_t>(call.num_ids) <= most) return;
    throw InputError(fmt::format("{}:{}: column 'hash_ids': {} ids of {} tokens each, but 'in' is {}", lines().name(), call.line,
                                 call.num_ids, session.block_size, call.prompt_tokens));
  }

  [[nodiscard]] Span think_time_of(const WekaCall& call, const WekaCall& latest, Span gap) const {
    if (!call.think_time)
      throw InputError(
          fmt::format("{}:{}: column 'think_time': missing in this request; 'delays: gaps' does without", lines().name(), call.line));
    return call.agent == latest.agent ? *call.think_time : std::min(*call.think_time, gap);
  }

  Span delay_of(const WekaCall& call, const WekaCall& latest) {
    if (own_.delays == Options::Delays::kNone) return Span{0};
    Span delay = std::max(Span{0}, call.start - end_of(latest));
    if (own_.delays == Options::Delays::kThinkTime)
      delay = think_time_of(call, latest, delay);
    else if (!latest.api_time && delay > Span{0})
      count("pauses that contain the service time of the request before, whose 'api_time' is missing");
    if (delay <= own_.idle_cap) return delay;
    count(fmt::format("pauses cut to {:g} s", to_s(own_.idle_cap)));
    return own_.idle_cap;
  }

  [[nodiscard]] std::string origin() const override {
    const std::string models = models_.size() < 2 ? "" : fmt::format("requests to {} models, which one model serves here", models_.size());
    if (num_serialized_ == 0) return models;
    return (models.empty() ? "" : models + "; ") + fmt::format(
                                                       "{} of {} requests overlapped others of their session when recorded ({} of them of "
                                                       "subagents), and follow them here: a session is "
                                                       "one chain",
                                                       num_serialized_, num_calls_, num_serialized_of_subagents_);
  }

  Options own_;
  std::vector<std::string> files_;
  std::size_t next_file_ = 0;
  std::unique_ptr<JsonDocuments> documents_;
  TurnQueue queue_;
  std::int64_t num_sessions_ = 0;
  std::set<std::string, std::less<>> models_;
  std::uint64_t num_calls_ = 0, num_serialized_ = 0, num_serialized_of_subagents_ = 0;
};

KVLAB_REGISTER_TRACE(Weka, "weka",
                     R"({"id":...,"block_size":64,"requests":[{"t":...,"in":...,"out":...,"hash_ids":[...]},...]}, or a folder)",
                     "Weka, kv-cache-tester");

}  // namespace

}  // namespace kvlab
