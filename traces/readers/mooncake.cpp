#include <fmt/format.h>

#include <array>
#include <limits>
#include <optional>

#include "traces/readers/hash_ids.h"
#include "traces/readers/readers.h"

namespace kvlab {

namespace {

// Mooncake traces (Qin et al., FAST 2025; github.com/kvcache-ai/Mooncake), times in milliseconds. Dynamo's dialect has other
// names for the columns, sessions, and `delay`: a turn that comes so long after its session's turn before has finished.
class Mooncake final : public JsonReader {
 public:
  struct Options {
    explicit Options(Params& p)
        : block_size(p.optional<std::int32_t>("block_size", 0, 1, 1 << 20, "mooncake: tokens per hash id; needed unless the rows say it")) {
    }
    std::int32_t block_size;  // 0: as the rows say
  };
  static bool recognises(std::string_view line) { return object_has(line, "input_length") || object_has(line, "input_tokens"); }
  Mooncake(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : JsonReader(std::move(lines), options, "timestamp", kMillisecondNs), own_(own) {}

 private:
  enum Key : std::uint8_t { kTime, kCreated, kInput, kInputTokens, kOutput, kOutputTokens, kIds, kBlock, kSession, kDelay, kDelayMs };
  static constexpr std::array<std::string_view, 12> kKeys{"timestamp",     "created_time",  "input_length", "input_tokens",
                                                          "output_length", "output_tokens", "hash_ids",     "block_size",
                                                          "session_id",    "delay",         "delay_ms",     "request_id"};
  static constexpr std::int64_t kMillisecondNs = 1'000'000;

  struct Row {
    std::optional<Span> at, delay;
    std::int32_t block_size = 0;
    bool has_ids = false;
  };

  bool read_row(TraceRequest& request) override {
    Row row;
    ids_.clear();
    if (!rows_.next(kKeys, [&](std::size_t key, JsonField field) { read_field(key, field, request, row); })) return false;
    if (request.prompt_tokens == 0) fail_missing_key(lines(), "input_length");
    if (request.output_tokens == 0) fail_missing_key(lines(), "output_length");
    request.is_follow_up = row.delay.has_value();
    if (row.delay && row.at) lines().fail("delay", "a row has either a timestamp or a delay after the turn before it");
    if (row.delay && request.session < 0) fail_missing_key(lines(), "session_id");
    if (row.delay)
      request.delay = *row.delay;
    else
      request.arrival = row.at ? Time(*row.at) : arrival_of_row_without();
    if (row.has_ids) set_content(request, row);
    return true;
  }

  void read_field(std::size_t key, JsonField field, TraceRequest& request, Row& row) {
    const auto only_once = [&](bool is_set) {
      if (is_set) field.fail("the row has this column under another name as well");
    };
    switch (key) {
      case kTime:
      case kCreated:
        only_once(row.at.has_value());
        row.at = field.time(kMillisecondNs);
        break;
      case kInput:
      case kInputTokens:
        only_once(request.prompt_tokens > 0);
        request.prompt_tokens = field.prompt_tokens();
        break;
      case kOutput:
      case kOutputTokens:
        only_once(request.output_tokens > 0);
        request.output_tokens = field.output_tokens();
        break;
      case kIds:
        row.has_ids = true;
        field.unsigned_list(ids_);
        break;
      case kBlock:
        row.block_size = static_cast<std::int32_t>(field.integer(1, kMaxTokens));
        break;
      case kSession:
        request.session = field.session();
        break;
      case kDelay:
      case kDelayMs:
        only_once(row.delay.has_value());
        row.delay = field.time(kMillisecondNs);
        break;
      default:
        break;  // request_id: requests are known by their place
    }
  }

  void set_content(TraceRequest& request, const Row& row) {
    const std::int32_t block = row.block_size > 0 ? row.block_size : own_.block_size;
    if (block == 0) {
      lines().fail("hash_ids",
                   "tokens per hash id unknown: set 'block_size' (512 in the traces that Mooncake published; 64, 256 and others occur)");
    }
    if (own_.block_size > 0 && row.block_size > 0 && row.block_size != own_.block_size) {
      lines().fail("block_size", fmt::format("{} in the row, but 'block_size: {}' was asked for", row.block_size, own_.block_size));
    }
    set_chained_ids(lines(), ids_, block, request);
  }

  Options own_;
  std::vector<std::uint64_t> ids_;
};

KVLAB_REGISTER_TRACE(Mooncake, "mooncake", R"({"timestamp":...,"input_length":...,"output_length":...,"hash_ids":[...]})", "");

}  // namespace

}  // namespace kvlab
