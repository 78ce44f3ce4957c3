#include <optional>

#include "traces/readers/hash_ids.h"
#include "traces/readers/mooncake_row.h"
#include "traces/readers/readers.h"

namespace kvlab {

namespace {

// Mooncake (Qin et al., FAST 2025; github.com/kvcache-ai/Mooncake), milliseconds. Dynamo's dialect has other column names, sessions, and
// `delay` after the session's previous turn.
class Mooncake final : public JsonReader {
 public:
  struct Options {
    explicit Options(Params& p)
        : block_size(p.optional<std::int32_t>("block_size", 0, 1, 1 << 20, "mooncake: tokens per hash id; needed unless the rows say it")) {
    }
    std::int32_t block_size;  // 0: the rows'
  };
  static bool recognises(std::string_view line) { return MooncakeRow::may_be(line); }
  Mooncake(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : JsonReader(std::move(lines), options, "timestamp", MooncakeRow::kUnitNs), own_(own) {}

 private:
  // Keys from wait_for on belong to agents, whose first row may lack them.
  static constexpr std::size_t kRequestId = MooncakeRow::kKeys.size();
  static constexpr std::size_t kFirstOfAgents = MooncakeRow::kKeys.size() + 3;
  static constexpr auto kKeys = with_mooncake_keys(std::array<std::string_view, 8>{
      "request_id", "request_kind", "output_token_ids", "wait_for", "tool_wait_ms", "branches", "prefix_reset", "tool_events"});

  bool read_row(TraceRequest& request) override {
    const auto read_field = [&](std::size_t key, JsonField field) {
      if (key >= kFirstOfAgents) field.fail("rows of agents have this column; set 'format: agentic_mooncake'");
      if (key == kRequestId) {
        if (!field.is_null()) id_ = field.session();
        return;
      }
      row_.read_field(key, field);
    };
    do {
      row_.clear();
      id_.reset();
      if (!rows_.next(kKeys, read_field)) return false;
    } while (id_ && is_repeated(*id_));
    row_.check_lengths(lines(), own_.block_size);
    request.prompt_tokens = row_.prompt_tokens;
    request.output_tokens = row_.output_tokens;
    request.session = row_.session;
    request.is_follow_up = row_.delay.has_value();
    if (row_.delay && row_.at_ns) lines().fail("delay", "a row has either a timestamp or a delay after the turn before it");
    if (row_.delay && request.session < 0) fail_missing_key(lines(), "session_id");
    if (row_.delay)
      request.delay = *row_.delay;
    else
      request.arrival = row_.at_ns ? time_of(*row_.at_ns) : arrival_of_row_without();
    if (row_.has_ids) set_chained_ids(lines(), row_.ids, row_.block_of(lines(), own_.block_size), request);
    return true;
  }

  Options own_;
  MooncakeRow row_;
  std::optional<std::int64_t> id_;
};

KVLAB_REGISTER_TRACE(Mooncake, "mooncake", R"({"timestamp":...,"input_length":...,"output_length":...,"hash_ids":[...]})",
                     "Mooncake: Qin et al. 2024, arXiv:2407.00079");

}  // namespace

}  // namespace kvlab
