#include "app/tokenize.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "app/text_file.h"
#include "base/error.h"
#include "engine/tokenizer/tokenizer.h"

namespace kvlab {

namespace {

std::string text_or_input(const std::string& file) {
  if (file != "-") return read_text(file);
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

std::vector<std::int32_t> read_ids(const std::string& file) {
  const nlohmann::json list = nlohmann::json::parse(text_or_input(file), nullptr, false);
  if (!list.is_array()) throw InputError(file + ": not a JSON list of token ids");
  std::vector<std::int32_t> ids;
  for (const nlohmann::json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) throw InputError(fmt::format("{}: entry {} is no token id", file, ids.size()));
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

}  // namespace

int tokenize(const TokenizeCommand& c, std::ostream& out) {
  const Tokenizer tokenizer = Tokenizer::load(c.model);
  if (!c.ids_file.empty()) {
    out << tokenizer.decode(read_ids(c.ids_file), c.without_special);
    return 0;
  }
  const std::vector<std::int32_t> ids = tokenizer.encode(text_or_input(c.text_file), !c.without_special);
  if (!c.shows_tokens) out << fmt::format("[{}]\n", fmt::join(ids, ", "));
  if (!c.shows_tokens) return 0;
  // As JSON, so that a token with a line break stays on its line.
  for (const std::int32_t id : ids) out << fmt::format("{} {}\n", id, nlohmann::json(tokenizer.token(id).value_or("")).dump());
  return 0;
}

}  // namespace kvlab
