#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "traces/json_rows.h"
#include "traces/readers/hashed_rows.h"

namespace kvlab {

namespace {

// ShareGPT: [{"id", "conversations": [{"from": "human" or "gpt", "value": text}]}]. A request is an answer; its prompt is all before. No
// times or token counts. LLaMA-Factory's dialects (data/README.md: "sharegpt", and OpenAI's "messages", "role", "content") add system
// prompt, tools and calls.
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
    const auto has = [&](std::string_view key) { return begin.find(key) != std::string_view::npos; };
    return is_json && (has("\"conversations\"") || (has("\"messages\"") && has("\"role\"") && has("\"content\"")));
  }
  ShareGpt(std::unique_ptr<LineReader> lines, const ReaderOptions& options, const Options& own)
      : RowReader(options, "arrival", 0), own_(own), documents_(std::move(lines), ignored()) {}
  [[nodiscard]] bool has_arrivals() const override { return false; }

 private:
  enum TalkKey : std::uint8_t { kMessages, kOpenAiMessages, kSystem, kTools, kId };
  static constexpr std::array<std::string_view, 6> kKeys{"conversations", "messages", "system", "tools", "id", "items"};
  enum MessageKey : std::uint8_t { kFrom, kRole, kValue, kContent };
  static constexpr std::array<std::string_view, 8> kMessageKeys{"from", "role", "value", "content", "markdown", "text", "weight", "loss"};

  struct Message {
    std::string from, value;
    bool has_from = false, has_value = false;
    std::int64_t line = 0;
  };
  // The system prompt may follow messages.
  struct Texts {
    std::string system, tools;
    std::vector<Message> messages;
    std::optional<std::int64_t> id;
    bool has_messages = false;
  };
  // So far.
  struct Talk {
    explicit Talk(std::int32_t block_tokens, std::uint64_t number) : content(block_tokens, number) {}
    PieceHashes content;
    std::int64_t tokens = 0;
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
    return queue_.next(request, [&] { return read_conversation(); });
  }

  bool read_conversation() {
    queue_.clear();
    Texts texts;
    if (!documents_.next(kKeys, [&](std::size_t key, JsonField field) { read_field(key, field, texts); })) return false;
    if (!texts.has_messages) fail_missing_key(lines(), "conversations");
    if (texts.id && is_repeated(*texts.id, "id", "conversations")) return true;
    Talk talk(own_.block_tokens, static_cast<std::uint64_t>(num_talks_) + 1);
    for (const std::string& first : {texts.system, texts.tools})
      if (!first.empty()) say(tokens_of(first), talk);
    for (const Message& message : texts.messages) end_message(message, talk);
    ++num_talks_;
    if (talk.turn == 0) count("conversations without an answered question passed over");
    return true;
  }

  void read_field(std::size_t key, JsonField field, Texts& texts) {
    if (key == kSystem && !field.is_null()) texts.system = field.lenient_text();
    if (key == kTools && !field.is_null()) texts.tools = field.is_text() ? field.lenient_text() : field.raw_text();
    if (key == kId && !field.is_null()) texts.id = number_of_name(field.is_text() ? field.lenient_text() : field.raw_text());
    if (key > kOpenAiMessages) return;
    if (texts.has_messages) field.fail("the conversation has another list of messages as well");
    texts.has_messages = true;
    Message message;
    field.each_object(
        kMessageKeys, [&](std::size_t k, JsonField inner) { read_message_field(k, inner, message); },
        [&] {
          if (!message.has_from) fail_missing_key(lines(), "from");
          if (!message.has_value) fail_missing_key(lines(), "value");
          message.line = lines().line_number();
          texts.messages.push_back(std::move(message));
          message = Message{};
        });
  }

  void read_message_field(std::size_t key, JsonField& field, Message& message) {
    if (key == kFrom || key == kRole) message.has_from = true, message.from = field.text();
    if (key != kValue && key != kContent) return;
    message.has_value = true;
    if (field.is_null())
      count("messages without text taken as empty");
    else
      message.value = field.lenient_text();
  }

  // All but answers.
  void say(std::int32_t tokens, Talk& talk) {
    talk.tokens += tokens;
    talk.content.append(num_pieces_++, tokens);
  }

  void end_message(const Message& message, Talk& talk) {
    static constexpr auto kAnswers =
        std::to_array<std::string_view>({"gpt", "assistant", "function_call", "chatgpt", "bing", "bard", "model"});
    static constexpr auto kQuestions = std::to_array<std::string_view>({"human", "user", "observation", "tool", "function"});
    const bool is_answer = std::ranges::find(kAnswers, message.from) != kAnswers.end();
    const bool is_question = std::ranges::find(kQuestions, message.from) != kQuestions.end();
    if (!is_answer && !is_question && message.from != "system")
      throw InputError(fmt::format("{}:{}: column 'from': {} is neither human, user, system, observation, tool, function nor {}",
                                   lines().name(), message.line, kvlab::quoted(message.from),
                                   join(std::vector<std::string>(kAnswers.begin(), kAnswers.end()), ", ")));
    const std::int32_t tokens = tokens_of(message.value);
    if (is_question) talk.has_question = true;
    if (!is_answer) return say(tokens, talk);
    if (!talk.has_question) return count("answers without a question passed over");
    if (tokens == 0) return count("empty answers passed over");
    push_answer(tokens, message.line, talk);
    talk.tokens += tokens;
  }

  void push_answer(std::int32_t tokens, std::int64_t line, Talk& talk) {
    talk.content.append(num_pieces_++, tokens);
    if (own_.max_turns > 0 && talk.turn == own_.max_turns) return;
    if (talk.tokens + tokens > kMaxTokens)
      throw InputError(fmt::format("{}:{}: column 'value': the conversation is longer than {} tokens", lines().name(), line, kMaxTokens));
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
  TurnQueue queue_;
  std::int64_t num_talks_ = 0;
  std::uint64_t num_pieces_ = 0;
};

KVLAB_REGISTER_TRACE(ShareGpt, "sharegpt", R"([{"id":...,"conversations":[{"from":"human","value":...},{"from":"gpt","value":...}]},...])",
                     "ShareGPT conversations");

}  // namespace

}  // namespace kvlab
