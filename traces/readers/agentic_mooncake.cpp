#include <fmt/format.h>

#include <iterator>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "traces/readers/hashed_rows.h"

namespace kvlab {

namespace {

// Dynamo, docs/dynosim/trace-formats.md, "Agentic Mooncake": a request starts delay + tool_wait_ms after those it waits for. Only chains
// are supported.
class AgenticMooncake final : public JsonReader {
 public:
  struct Options : MooncakeOptions {
    explicit Options(Params& p) : MooncakeOptions(p, "agentic_mooncake") {}
  };
  static bool recognises(std::string_view line) {
    return MooncakeRow::may_be(line) &&
           (object_has(line, "wait_for") || object_has(line, "tool_wait_ms") || object_has(line, "prefix_reset"));
  }
  AgenticMooncake(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : JsonReader(std::move(lines), options, "timestamp", MooncakeRow::kUnitNs), own_(own) {}

 private:
  enum Key : std::uint8_t { kRequest = MooncakeRow::kKeys.size(), kWaitFor, kToolWait };
  // The last five are redundant or unused.
  static constexpr auto kKeys = with_mooncake_keys(std::array<std::string_view, 8>{
      "request_id", "wait_for", "tool_wait_ms", "branches", "prefix_reset", "tool_events", "request_kind", "output_token_ids"});

  struct Row {
    MooncakeRow shape;
    std::string id, wait_for;
    Span tool_wait{};
    std::int64_t line = 0;
    std::int32_t hash_tokens = 0;
  };
  struct Known {
    std::int64_t chain = -1;
    std::int32_t turn = 0;
    std::int64_t line = 0;
    std::string next;  // waiting request, its line
    std::int64_t next_line = 0;
  };

  bool read_row(TraceRequest& request) override {
    while (take_row()) {
      if (row_.wait_for.empty() || known_.contains(row_.wait_for)) {
        give(request);
        return true;
      }
      if (!options().any_order)
        fail_at(row_.line, "wait_for",
                fmt::format("{} is the request_id of no row above; set 'sort: true' if its row comes later (loads the whole trace)",
                            kvlab::quoted(row_.wait_for)));
      held_[row_.wait_for].push_back(std::move(row_));
    }
    fail_where_rows_are_held();
    return false;
  }

  // One that waited for the last request, else the next.
  bool take_row() {
    if (!due_.empty()) {
      row_ = std::move(due_.back());
      due_.pop_back();
      return true;
    }
    row_ = Row{};
    if (!rows_.next(kKeys, [&](std::size_t key, JsonField field) { read_field(key, field); })) return false;
    row_.shape.check_lengths(lines(), own_.block_size);
    if (row_.id.empty()) fail_missing_key(lines(), "request_id");
    row_.line = lines().line_number();
    if (row_.shape.ids.empty()) return true;
    TraceRequest content;
    content.prompt_tokens = row_.shape.prompt_tokens;
    set_chained_ids(lines(), row_.shape.ids, row_.shape.block_of(lines(), own_.block_size), content);
    row_.hash_tokens = content.hash_tokens;
    return true;
  }

  void read_field(std::size_t key, JsonField field) {
    if (key < MooncakeRow::kKeys.size()) return row_.shape.read_field(key, field);
    if (field.is_null()) return;
    if (key == kRequest) row_.id = field.name();
    if (key == kToolWait) row_.tool_wait = field.time(MooncakeRow::kUnitNs);
    if (key != kWaitFor) return;
    field.each_name([&](const std::string& name, bool /*is_text*/) {
      if (!row_.wait_for.empty() && row_.wait_for != name)
        field.fail(
            "the request waits for several others; requests with more than one predecessor (DAGs) are not simulated yet, chains are");
      row_.wait_for = name;
    });
  }

  void give(TraceRequest& request) {
    request.prompt_tokens = row_.shape.prompt_tokens;
    request.output_tokens = row_.shape.output_tokens;
    if (row_.wait_for.empty())
      start_chain(request);
    else
      continue_chain(request);
    facts_ = {};
    facts_.program = row_.shape.session >= 0 ? row_.shape.session : request.session;
    facts_.turn = known_.at(row_.id).turn;
    request.facts = &facts_;
    request.hash_tokens = row_.hash_tokens;
    if (row_.hash_tokens > 0) request.hashes = row_.shape.ids;
    if (const auto waiting = held_.find(row_.id); waiting != held_.end()) {
      due_.insert(due_.end(), std::make_move_iterator(waiting->second.rbegin()), std::make_move_iterator(waiting->second.rend()));
      held_.erase(waiting);
    }
  }

  void start_chain(TraceRequest& request) {
    // Dynamo counts from the start if nothing is waited for.
    const Span wait = row_.shape.delay.value_or(Span{0}) + row_.tool_wait;
    request.arrival = (row_.shape.at_ns ? time_of(*row_.shape.at_ns) : arrival_of_row_without()) + wait;
    request.session = number_of_name(row_.id);
    remember(Known{request.session, 0, row_.line, "", 0});
  }

  void continue_chain(TraceRequest& request) {
    Known& parent = known_.at(row_.wait_for);
    if (!parent.next.empty())
      fail_at(row_.line, "wait_for",
              fmt::format("{} of line {} waits for {} as well; a session that forks (a DAG) is not simulated yet, chains are",
                          kvlab::quoted(parent.next), parent.next_line, kvlab::quoted(row_.wait_for)));
    parent.next = row_.id;
    parent.next_line = row_.line;
    request.is_follow_up = true;
    request.session = parent.chain;
    request.delay = row_.shape.delay.value_or(Span{0}) + row_.tool_wait;
    remember(Known{parent.chain, parent.turn + 1, row_.line, "", 0});
  }

  void remember(Known known) {
    const auto [place, is_new] = known_.emplace(row_.id, std::move(known));
    if (!is_new) fail_at(row_.line, "request_id", fmt::format("{} is also that of line {}", kvlab::quoted(row_.id), place->second.line));
  }

  // Names a row that waits for a missing request, else a cycle.
  void fail_where_rows_are_held() const {
    std::unordered_set<std::string> ids;
    for (const auto& [name, rows] : held_)
      for (const Row& row : rows) ids.insert(row.id);
    const Row *first = nullptr, *lost = nullptr;
    for (const auto& [name, rows] : held_) {
      for (const Row& row : rows) {
        if (first == nullptr || row.line < first->line) first = &row;
        if (!ids.contains(row.wait_for) && (lost == nullptr || row.line < lost->line)) lost = &row;
      }
    }
    if (lost != nullptr) fail_at(lost->line, "wait_for", kvlab::quoted(lost->wait_for) + " is the request_id of no row");
    if (first != nullptr)
      fail_at(first->line, "wait_for", kvlab::quoted(first->wait_for) + " waits for this row in turn, or for others that wait in a circle");
  }

  [[noreturn]] void fail_at(std::int64_t line, std::string_view column, const std::string& message) const {
    throw InputError(fmt::format("{}:{}: column '{}': {}", lines().name(), line, column, message));
  }

  Options own_;
  Row row_;
  RequestFacts facts_;
  std::unordered_map<std::string, Known> known_;
  std::unordered_map<std::string, std::vector<Row>> held_;  // by awaited request
  std::vector<Row> due_;                                    // taken from the back
};

KVLAB_REGISTER_TRACE(AgenticMooncake, "agentic_mooncake",
                     R"({"request_id":...,"wait_for":[...],"tool_wait_ms":...,"input_length":...,"output_length":...,"hash_ids":[...]})",
                     "Dynamo, trace formats of dynosim");

}  // namespace

}  // namespace kvlab
