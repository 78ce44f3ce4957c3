#include <array>
#include <limits>
#include <unordered_map>

#include "traces/readers/hashed_rows.h"

namespace kvlab {

namespace {

// Alibaba's Bailian (Wang et al., USENIX ATC 2025; github.com/alibaba-edu/qwen-bailian-usagetraces-anon): seconds, 16 tokens per hash id.
// Turns with a common first turn are a session, each at its recorded time.
class Bailian final : public JsonReader {
 public:
  struct Options {
    explicit Options(Params& p) : block_size(p.optional<std::int32_t>("block_size", 16, 1, 1 << 20, "bailian: tokens per hash id")) {}
    std::int32_t block_size;
  };
  static bool recognises(std::string_view line) { return object_has(line, "chat_id") && !object_has(line, "prompt_tokens"); }
  Bailian(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : JsonReader(std::move(lines), options, "timestamp", kSecondNs), own_(own) {}

 private:
  enum Key : std::uint8_t { kChat, kParent, kTime, kInput, kOutput, kIds };
  static constexpr std::array<std::string_view, 8> kKeys{"chat_id",       "parent_chat_id", "timestamp", "input_length",
                                                         "output_length", "hash_ids",       "type",      "turn"};
  static constexpr std::int64_t kNone = -1;  // parent of first turns

  struct Row {
    std::int64_t chat = kNone, parent = kNone;
    bool has_arrival = false;
  };

  bool read_row(TraceRequest& request) override {
    Row row;
    do {
      row = Row{};
      request = TraceRequest{};
      ids_.clear();
      if (!rows_.next(kKeys, [&](std::size_t key, JsonField field) { read_field(key, field, request, row); })) return false;
      if (row.chat == kNone) fail_missing_key(lines(), "chat_id");
    } while (is_repeated(row.chat, "chat_id"));
    if (request.prompt_tokens == 0) fail_missing_key(lines(), "input_length");
    if (request.output_tokens == 0) fail_missing_key(lines(), "output_length");
    if (!row.has_arrival) request.arrival = arrival_of_row_without();
    request.session = session_of(row);
    if (!ids_.empty()) set_chained_ids(lines(), ids_, own_.block_size, request);
    return true;
  }

  void read_field(std::size_t key, JsonField field, TraceRequest& request, Row& row) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    if (key == kChat) row.chat = field.integer(0, kMost);
    if (key == kParent) row.parent = field.integer(kNone, kMost, "; -1 marks the first turn of a chat");
    if (key == kTime) row.has_arrival = true, request.arrival = Time(field.time(kSecondNs));
    if (key == kInput) request.prompt_tokens = field.prompt_tokens();
    if (key == kOutput) request.output_tokens = field.output_tokens();
    if (key == kIds) field.id_list(ids_);  // `type` and `turn` are redundant
  }

  // Numbered by the first turn. Only later turns are stored: another parent is a first turn, or precedes the file.
  std::int64_t session_of(const Row& row) {
    if (row.parent == kNone) return row.chat;
    const auto found = session_of_turn_.find(row.parent);
    const std::int64_t session = found == session_of_turn_.end() ? row.parent : found->second;
    session_of_turn_.emplace(row.chat, session);
    return session;
  }

  Options own_;
  std::vector<std::uint64_t> ids_;
  std::unordered_map<std::int64_t, std::int64_t> session_of_turn_;
};

KVLAB_REGISTER_TRACE(Bailian, "bailian",
                     R"({"chat_id":...,"parent_chat_id":...,"timestamp":...,"input_length":...,"output_length":...,"hash_ids":[...]})",
                     "Wang et al. 2025, arXiv:2506.02634");

}  // namespace

}  // namespace kvlab
