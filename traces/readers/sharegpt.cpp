#include <fmt/format.h>

#include <array>
#include <cmath>

#include "base/hash.h"
#include "traces/json_documents.h"
#include "traces/json_text_decode.h"
#include "traces/readers/readers.h"
#include "traces/readers/request_queue.h"

namespace kvlab {

namespace {

// Conversations of ShareGPT: a list of objects {"id", "conversations": [{"from": "human" or "gpt", "value": text}]}. A request is an
// answer; its prompt is all that was said before. There are no times, and texts in place of token counts.
class ShareGpt final : public RowReader {
 public:
  struct Options {
    explicit Options(Params& p)
        : chars_per_token(
              p.optional<double>("chars_per_token", 4, 0.1, 100, "sharegpt: without a tokenizer, characters / this, rounded up")),
          max_turns(p.optional<std::int32_t>("max_turns", 0, 0, 1 << 20, "sharegpt: answers to take of a conversation; 0: all")),
          pause(p.seconds("turn_pause_s", 0, 0, 1e7, "sharegpt: from an answer to the next question")),
          block_tokens(p.optional<std::int32_t>("block_tokens", 16, 1, 1 << 20, "sharegpt: tokens per content hash")) {}
    double chars_per_token;
    std::int32_t max_turns;
    Span pause;
    std::int32_t block_tokens;
  };
  static constexpr bool kIsDocument = true;
  static bool recognises(std::string_view begin) {
    const std::size_t first = begin.find_first_not_of(" \t\r\n");
    const bool is_json = first != std::string_view::npos && (begin[first] == '[' || begin[first] == '{');
    return is_json && begin.find("\"conversations\"") != std::string_view::npos;
  }
  ShareGpt(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : RowReader(options, "arrival", 0), own_(own), documents_(std::move(lines), ignored()) {}
  [[nodiscard]] bool has_arrivals() const override { return false; }

 private:
  static constexpr std::array<std::string_view, 3> kKeys{"conversations", "id", "items"};
  enum MessageKey : std::uint8_t { kFrom, kValue };
  static constexpr std::array<std::string_view, 4> kMessageKeys{"from", "value", "markdown", "text"};

  struct Message {
    std::string from, value;
    bool has_from = false, has_value = false;
  };
  // A conversation as far as it was read.
  struct Talk {
    explicit Talk(std::int32_t block_tokens, std::uint64_t number) : content(block_tokens, number) {}
    PieceHashes content;
    std::int64_t tokens = 0;  // said so far
    std::int32_t turn = 0;
    bool has_question = false;
  };

  [[nodiscard]] const InputPlace& lines() const override { return documents_.lines(); }
  [[nodiscard]] std::string origin() const override {
    if (options().count_tokens) return "";
    return fmt::format("token counts are estimates, {:g} characters each; 'kvlab trace convert --tokenizer FOLDER' counts them",
                       own_.chars_per_token);
  }

  bool read_row(TraceRequest& request) override {
    while (!queue_.pop(request))
      if (!read_conversation()) return false;
    return true;
  }

  bool read_conversation() {
    queue_.clear();
    Talk talk(own_.block_tokens, static_cast<std::uint64_t>(num_talks_) + 1);
    bool has_messages = false;
    const auto read_field = [&](std::size_t key, JsonField field) {
      if (kKeys[key] != "conversations") return;
      has_messages = true;
      Message message;
      field.each_object(
          kMessageKeys, [&](std::size_t k, JsonField inner) { read_message_field(k, inner, message); },
          [&] {
            end_message(message, talk);
            message = Message{};
          });
    };
    if (!documents_.next(kKeys, read_field)) return false;
    if (!has_messages) fail_missing_key(lines(), "conversations");
    ++num_talks_;
    if (talk.turn == 0) count("conversations without an answered question passed over");
    return true;
  }

  static void read_message_field(std::size_t key, JsonField& field, Message& message) {
    if (key == kFrom) message.has_from = true, message.from = field.text();
    if (key == kValue) message.has_value = true, message.value = field.lenient_text();
  }

  void end_message(const Message& message, Talk& talk) {
    if (!message.has_from) fail_missing_key(lines(), "from");
    if (!message.has_value) fail_missing_key(lines(), "value");
    const bool is_answer = message.from == "gpt" || message.from == "assistant" || message.from == "chatgpt" || message.from == "bing" ||
                           message.from == "bard";
    const bool is_question = message.from == "human" || message.from == "user";
    if (!is_answer && !is_question && message.from != "system")
      lines().fail("from", kvlab::quoted(message.from) + " is neither human, user, system nor gpt, assistant, chatgpt, bing, bard");
    const std::int32_t tokens = tokens_of(message.value);
    if (is_question) talk.has_question = true;
    if (is_answer && !talk.has_question) return count("answers without a question passed over");
    if (is_answer && tokens == 0) return count("empty answers passed over");
    if (is_answer) push_answer(tokens, talk);
    talk.tokens += tokens;
    if (!is_answer) talk.content.append(num_pieces_++, tokens);
  }

  void push_answer(std::int32_t tokens, Talk& talk) {
    talk.content.append(num_pieces_++, tokens);
    if (own_.max_turns > 0 && talk.turn == own_.max_turns) return;
    if (talk.tokens + tokens > kMaxTokens) lines().fail("value", fmt::format("the conversation is longer than {} tokens", kMaxTokens));
    if (talk.tokens == 0) return count("answers to empty questions passed over");
    RequestFacts facts;
    facts.turn = talk.turn;
    TraceRequest request;
    request.prompt_tokens = static_cast<std::int32_t>(talk.tokens);
    request.output_tokens = tokens;
    request.session = num_talks_;
    request.is_follow_up = talk.turn > 0;
    if (request.is_follow_up) request.delay = own_.pause;
    request.hashes = talk.content.hashes();
    request.hash_tokens = request.hashes.empty() ? 0 : own_.block_tokens;
    request.facts = &facts;
    queue_.push(request);
    ++talk.turn;
  }

  [[nodiscard]] std::int32_t tokens_of(const std::string& text) const {
    if (options().count_tokens) return options().count_tokens(text);
    return static_cast<std::int32_t>(std::ceil(static_cast<double>(num_characters(text)) / own_.chars_per_token));
  }

  Options own_;
  JsonDocuments documents_;
  RequestQueue queue_;
  std::int64_t num_talks_ = 0;
  std::uint64_t num_pieces_ = 0;
};

KVLAB_REGISTER_TRACE(ShareGpt, "sharegpt", R"([{"id":...,"conversations":[{"from":"human","value":...},{"from":"gpt","value":...}]},...])",
                     "");

}  // namespace

}  // namespace kvlab
