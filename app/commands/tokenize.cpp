#include "app/commands/tokenize.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands/trace.h"
#include "base/error.h"
#include "base/json_node.h"
#include "base/json_text.h"
#include "base/read_file.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/unicode.h"

namespace kvlab {

namespace {

struct Input {
  explicit Input(const std::string& file) : name(file == "-" ? "standard input" : file) {
    text = file == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {}) : read_file(file);
  }
  std::string name, text;
};

std::vector<std::int32_t> read_ids(const Input& input) {
  const nlohmann::json list = parse_json(input.text, input.name);
  if (!list.is_array()) throw InputError(input.name + ": not a JSON list of token ids");
  return JsonNode(list, input.name).integers(0, std::numeric_limits<std::int32_t>::max());
}

}  // namespace

void check_utf8(std::string_view text, const std::string& file) {
  if (const std::size_t at = tokenization::first_invalid_utf8(text); at != std::string_view::npos)
    throw InputError(fmt::format("{}: byte {} is not UTF-8, which a tokenizer reads", file, at));
}

int tokenize(const TokenizeCommand& c, std::ostream& out) {
  const Tokenizer tokenizer = Tokenizer::load(c.model);
  if (!c.ids_file.empty()) {
    out << tokenizer.decode(read_ids(Input(c.ids_file)), c.without_special);
    return 0;
  }
  const Input input(c.text_file);
  check_utf8(input.text, input.name);
  const std::vector<std::int32_t> ids = tokenizer.encode(input.text, !c.without_special);
  if (!c.shows_tokens) {
    out << fmt::format("[{}]\n", fmt::join(ids, ", "));
    return 0;
  }
  // JSON keeps a line break on one line.
  for (const std::int32_t id : ids) out << fmt::format("{} {}\n", id, nlohmann::json(tokenizer.token(id).value_or("")).dump());
  return 0;
}

TokenCounter token_counter(const std::string& folder) {
  return [tokenizer = std::make_shared<const Tokenizer>(Tokenizer::load(folder))](std::string_view text) {
    return static_cast<std::int32_t>(tokenizer->encode(text, /*add_special=*/false).size());
  };
}

}  // namespace kvlab
