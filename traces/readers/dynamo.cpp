#include <array>
#include <optional>

#include "traces/readers/hashed_rows.h"

namespace kvlab {

namespace {

// Dynamo's dynamo.request.trace.v1 (docs/observability/request-tracing.md of ai-dynamo/dynamo): JSON lines by end, millisecond instants,
// rolling block hashes. A trajectory (newer: session_id) is a session with recorded times, tool time included. Records may be in an
// envelope's 'event'.
class DynamoTrace final : public JsonReader {
 public:
  static bool recognises(std::string_view line) { return object_has(line, "schema") && line.find("dynamo.request.trace.") != line.npos; }
  DynamoTrace(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& /*own*/)
      : JsonReader(std::move(lines), options, "request_received_ms", 0) {}

 private:
  static constexpr std::int64_t kUnitNs = 1'000'000;
  enum RowKey : std::uint8_t { kSchema, kEvent, kContext, kRequest, kEnvelope };
  static constexpr std::array<std::string_view, 10> kRowKeys{"schema", "event_type", "agent_context",      "request",      "event",
                                                             "tool",   "payload",    "event_time_unix_ms", "event_source", "timestamp"};
  enum RequestKey : std::uint8_t { kReceived, kOutput, kReplay, kId };
  static constexpr std::array<std::string_view, 4> kRequestKeys{"request_received_ms", "output_tokens", "replay", "request_id"};
  enum ReplayKey : std::uint8_t { kBlock, kInput, kHashes };
  static constexpr std::array<std::string_view, 3> kReplayKeys{"trace_block_size", "input_length", "input_sequence_hashes"};

  struct Row {
    std::string event;
    std::optional<std::int64_t> id;
    std::int64_t received_ns = -1, output_tokens = -1, trajectory = -1, session = -1;
    std::int32_t prompt_tokens = 0, block = 0;
    bool has_replay = false;
  };

  bool read_row(TraceRequest& request) override {
    Row row;
    do {
      row = Row{};
      hashes_.clear();
      if (!rows_.next(kRowKeys, [&](std::size_t key, JsonField field) { read_field(key, field, row); })) return false;
    } while (!is_used(row) || (row.id && is_repeated(*row.id)));
    if (row.received_ns < 0) fail_missing_key(lines(), "request_received_ms");
    if (row.prompt_tokens == 0) fail_missing_key(lines(), "input_length");
    request.arrival = since_first(row.received_ns);
    request.prompt_tokens = row.prompt_tokens;
    request.output_tokens = static_cast<std::int32_t>(row.output_tokens);
    request.session = row.trajectory >= 0 ? row.trajectory : row.session;
    if (hashes_.empty()) return true;
    if (row.block == 0) fail_missing_key(lines(), "trace_block_size");
    check_id_count(lines(), "input_sequence_hashes", hashes_.size(), row.block, row.prompt_tokens);
    request.hash_tokens = row.block;
    request.hashes = hashes_;
    return true;
  }

  bool is_used(const Row& row) {
    if (row.event.empty()) fail_missing_key(lines(), "event_type");
    if (row.event != "request_end") return count("records other than request_end passed over"), false;
    if (!row.has_replay) return count("requests without replay metadata passed over"), false;
    if (row.output_tokens < 0) return count("requests without 'output_tokens' passed over"), false;
    if (row.output_tokens == 0) return count("requests that ended without an output token passed over"), false;
    return true;
  }

  void read_field(std::size_t key, JsonField field, Row& row) {
    if (key == kSchema) check_schema(field);
    if (key == kEvent) row.event = field.text();
    if (key == kEnvelope && !field.is_null())
      field.object(kRowKeys, UnknownKeys::kPassOver, [&](std::size_t k, JsonField inner) { read_field(k, inner, row); });
    if (key == kContext && !field.is_null()) {
      static constexpr std::array<std::string_view, 2> kContextKeys{"trajectory_id", "session_id"};
      field.object(kContextKeys, UnknownKeys::kPassOver, [&](std::size_t k, JsonField inner) {
        if (!inner.is_null()) (k == 0 ? row.trajectory : row.session) = inner.session();
      });
    }
    if (key == kRequest && !field.is_null())
      field.object(kRequestKeys, UnknownKeys::kPassOver, [&](std::size_t k, JsonField inner) {
        if (k == kReceived) row.received_ns = inner.instant_ns(kUnitNs);
        if (k == kId && !inner.is_null()) row.id = inner.session();
        if (k == kOutput && !inner.is_null()) row.output_tokens = inner.integer(0, kMaxTokens);
        if (k == kReplay && !inner.is_null()) read_replay(inner, row);
      });
  }

  static void check_schema(JsonField& field) {
    const std::string_view schema = field.text();
    if (schema != "dynamo.request.trace.v1") field.fail(quoted(schema) + " is not 'dynamo.request.trace.v1', the version that is read");
  }

  void read_replay(JsonField& field, Row& row) {
    row.has_replay = true;
    field.object(kReplayKeys, UnknownKeys::kRefuse, [&](std::size_t key, JsonField inner) {
      if (key == kBlock) row.block = static_cast<std::int32_t>(inner.integer(1, kMaxTokens));
      if (key == kInput) row.prompt_tokens = inner.prompt_tokens();
      if (key == kHashes) inner.id_list(hashes_);
    });
  }

  std::vector<std::uint64_t> hashes_;
};

KVLAB_REGISTER_TRACE(DynamoTrace, "dynamo",
                     R"({"schema":"dynamo.request.trace.v1","event_type":"request_end","request":{...,"replay":{...}}})",
                     "Dynamo, request trace v1");

}  // namespace

}  // namespace kvlab
