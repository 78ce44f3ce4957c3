#include <fmt/format.h>

#include <string>
#include <unordered_map>

#include "base/name_number.h"
#include "traces/readers/hash_ids.h"
#include "traces/readers/mooncake_row.h"
#include "traces/readers/readers.h"

namespace kvlab {

namespace {

// Mooncake rows of agents (Dynamo, docs/dynosim/trace-formats.md, "Agentic Mooncake"): a request starts delay + tool_wait_ms after the
// requests that it waits for have finished. The simulation has chains: a request waits for one other, and one at most waits for it.
class AgenticMooncake final : public JsonReader {
 public:
  struct Options {
    explicit Options(Params& p)
        : block_size(p.optional<std::int32_t>("block_size", 0, 1, 1 << 20,
                                              "agentic_mooncake: tokens per hash id; needed unless the rows say it")) {}
    std::int32_t block_size;
  };
  static bool recognises(std::string_view line) {
    if (!object_has(line, "input_length") && !object_has(line, "input_tokens")) return false;
    return object_has(line, "wait_for") || object_has(line, "tool_wait_ms") || object_has(line, "prefix_reset");
  }
  AgenticMooncake(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : JsonReader(std::move(lines), options, "timestamp", MooncakeRow::kUnitNs), own_(own) {}

 private:
  enum Key : std::uint8_t { kRequest = MooncakeRow::kKeys.size(), kWaitFor, kToolWait };
  // The last three describe what wait_for and hash_ids already say.
  static constexpr auto kKeys = with_mooncake_keys(
      std::array<std::string_view, 6>{"request_id", "wait_for", "tool_wait_ms", "branches", "prefix_reset", "tool_events"});

  struct Known {
    std::int64_t chain = -1;
    std::int32_t turn = 0;
    std::int64_t line = 0;
    std::string next;  // the request that waits for it
  };

  bool read_row(TraceRequest& request) override {
    row_.clear();
    id_.clear();
    wait_for_.clear();
    tool_wait_ = Span{0};
    if (!rows_.next(kKeys, [&](std::size_t key, JsonField field) { read_field(key, field); })) return false;
    row_.check_lengths(lines());
    if (id_.empty()) fail_missing_key(lines(), "request_id");
    request.prompt_tokens = row_.prompt_tokens;
    request.output_tokens = row_.output_tokens;
    if (wait_for_.empty())
      start_chain(request);
    else
      continue_chain(request);
    facts_ = {};
    facts_.program = row_.session >= 0 ? row_.session : request.session;
    facts_.turn = known_.at(id_).turn;
    request.facts = &facts_;
    if (row_.has_ids) set_chained_ids(lines(), row_.ids, row_.block_of(lines(), own_.block_size), request);
    return true;
  }

  void read_field(std::size_t key, JsonField field) {
    if (key < MooncakeRow::kKeys.size()) return row_.read_field(key, field);
    if (key == kRequest) id_ = field.text();
    if (key == kToolWait && !field.is_null()) tool_wait_ = field.time(MooncakeRow::kUnitNs);
    if (key != kWaitFor || field.is_null()) return;
    field.each_text([&](std::string_view name) {
      if (!wait_for_.empty())
        field.fail(
            "the request waits for several others; requests with more than one predecessor (DAGs) are not simulated yet, chains are");
      wait_for_ = name;
    });
  }

  void start_chain(TraceRequest& request) {
    // Dynamo counts both from the request's start where nothing is waited for.
    const Span wait = row_.delay.value_or(Span{0}) + tool_wait_;
    request.arrival = (row_.at ? Time(*row_.at) : arrival_of_row_without()) + wait;
    request.session = number_of_name(id_);
    remember(Known{request.session, 0, lines().line_number(), ""});
  }

  void continue_chain(TraceRequest& request) {
    const auto before = known_.find(wait_for_);
    if (before == known_.end())
      lines().fail("wait_for", fmt::format("{} is the request_id of no row above; a request stands below the one that it waits for",
                                           kvlab::quoted(wait_for_)));
    Known& parent = before->second;
    if (!parent.next.empty())
      lines().fail("wait_for", fmt::format("{} waits for {} as well; branches (DAGs) are not simulated yet, chains are",
                                           kvlab::quoted(parent.next), kvlab::quoted(wait_for_)));
    parent.next = id_;
    request.is_follow_up = true;
    request.session = parent.chain;
    request.delay = row_.delay.value_or(Span{0}) + tool_wait_;
    remember(Known{parent.chain, parent.turn + 1, lines().line_number(), ""});
  }

  void remember(Known known) {
    const auto [place, is_new] = known_.emplace(id_, std::move(known));
    if (!is_new) lines().fail("request_id", fmt::format("{} is also that of line {}", kvlab::quoted(id_), place->second.line));
  }

  Options own_;
  MooncakeRow row_;
  std::string id_, wait_for_;
  Span tool_wait_{};
  RequestFacts facts_;
  std::unordered_map<std::string, Known> known_;
};

KVLAB_REGISTER_TRACE(AgenticMooncake, "agentic_mooncake",
                     R"({"request_id":...,"wait_for":[...],"tool_wait_ms":...,"input_length":...,"output_length":...,"hash_ids":[...]})",
                     "");

}  // namespace

}  // namespace kvlab
