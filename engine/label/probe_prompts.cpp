#include "engine/label/probe_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "base/random.h"

namespace kvlab {

namespace {

constexpr std::array<std::string_view, 16> kAdjectives{"old",  "small", "green", "quiet", "early", "broad", "plain", "warm",
                                                       "late", "heavy", "clear", "round", "light", "deep",  "dry",   "long"};
constexpr std::array<std::string_view, 32> kNouns{"river",  "garden", "window",  "letter",  "market",  "bridge",  "forest",  "winter",
                                                  "doctor", "farmer", "castle",  "basket",  "mirror",  "engine",  "valley",  "harbor",
                                                  "candle", "button", "teacher", "painter", "village", "station", "kitchen", "morning",
                                                  "island", "museum", "pocket",  "shadow",  "summer",  "ticket",  "pillow",  "hammer"};
constexpr std::array<std::string_view, 16> kVerbs{"follows", "covers", "leaves", "holds", "finds",  "carries", "changes", "shows",
                                                  "reaches", "meets",  "keeps",  "draws", "passes", "brings",  "opens",   "moves"};

// Numbered draws of one prompt.
class Words {
 public:
  Words(std::uint64_t seed, std::uint64_t index) : draw_{seed, Purpose::kLabel, index} {}
  std::uint64_t below(std::uint64_t n) {
    Draw draw = draw_;
    draw.step = next_++;
    return draw.below(n);
  }
  template <std::size_t N>
  std::string one_of(const std::array<std::string_view, N>& words) {
    return std::string(words[below(N)]);
  }
  std::string digits(std::size_t count) {
    std::string text;
    while (text.size() < count) text += static_cast<char>('0' + below(10));
    return text;
  }
  std::string sentence() {
    return "The " + one_of(kAdjectives) + " " + one_of(kNouns) + " " + one_of(kVerbs) + " the " + one_of(kAdjectives) + " " +
           one_of(kNouns) + ". ";
  }

 private:
  Draw draw_;
  std::uint64_t next_ = 0;
};

// At least this number of tokens.
std::vector<std::string> sentences(const Tokenizer& tokenizer, Words& words, std::int32_t tokens) {
  std::vector<std::string> all;
  for (std::int64_t count = 0; count < tokens; count += std::ssize(tokenizer.encode(all.back(), false))) all.push_back(words.sentence());
  return all;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

std::int32_t common_prefix(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  return static_cast<std::int32_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

std::vector<std::int32_t> made_up_text(const Tokenizer& tokenizer, const ModelConfig& model, std::uint64_t seed, std::uint64_t index,
                                       std::int32_t tokens) {
  Words words(seed, index);
  std::vector<std::int32_t> ids = tokenizer.encode_prompt(joined(sentences(tokenizer, words, tokens)), model.bos_id);
  ids.resize(std::min(ids.size(), static_cast<std::size_t>(tokens)));
  return ids;
}

NeedleProbe needle_probe(const Tokenizer& tokenizer, const ModelConfig& model, std::uint64_t seed, std::uint64_t index, std::int32_t tokens,
                         double depth) {
  constexpr std::int32_t kFrame = 48;  // of needle and question, about
  Words words(seed, index);
  const std::string key = words.one_of(kNouns), value = words.digits(6);
  std::vector<std::string> text = sentences(tokenizer, words, std::max(1, tokens - kFrame));
  const auto at = static_cast<std::ptrdiff_t>(depth * static_cast<double>(text.size()));
  const std::string before = joined({text.begin(), text.begin() + at}) + "\nThe code for " + key + " is ";
  const std::string after = ".\n" + joined({text.begin() + at, text.end()}) + "\nQ: code for " + key + "?\nA: ";
  NeedleProbe probe;
  probe.ids = tokenizer.encode_prompt(before + value + after, model.bos_id);
  probe.needle = {common_prefix(probe.ids, tokenizer.encode_prompt(before, model.bos_id)),
                  common_prefix(probe.ids, tokenizer.encode_prompt(before + value, model.bos_id))};
  if (probe.needle.first >= probe.needle.second) throw InputError("the model's tokenizer leaves no token to the digits of a needle");
  return probe;
}

std::vector<std::int32_t> repeated_block(const Tokenizer& tokenizer, const ModelConfig& model, std::uint64_t seed, std::uint64_t index,
                                         std::int32_t block_tokens, std::int32_t repeats) {
  Words words(seed, index);
  std::vector<std::int32_t> known = tokenizer.encode(joined(sentences(tokenizer, words, 1024)), false);
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  std::vector<std::int32_t> block, ids;
  for (std::int32_t i = 0; i < block_tokens; ++i) block.push_back(known[words.below(known.size())]);
  if (model.bos_id >= 0) ids.push_back(model.bos_id);
  for (std::int32_t i = 0; i < repeats; ++i) ids.insert(ids.end(), block.begin(), block.end());
  return ids;
}

void require_context(const ModelConfig& model, std::size_t tokens, const char* what) {
  if (std::cmp_greater(tokens, model.max_tokens))
    throw InputError(fmt::format("{} of {} tokens is longer than the context of model '{}', {} tokens: ask for less", what, tokens,
                                 model.name, model.max_tokens));
}

}  // namespace kvlab
