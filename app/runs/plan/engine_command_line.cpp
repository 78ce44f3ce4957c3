#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "app/runs/plan/engine_flags.h"
#include "base/error.h"

namespace kvlab {

namespace {

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

// As a shell does; quotes keep blanks.
class Words {
 public:
  explicit Words(const std::string& text) : text_(text) {
    while (at_ < text_.size()) step();
    if (quote_ != 0) throw InputError(fmt::format("a quote {} is not closed: {}", quote_, text_));
  }
  std::vector<std::string> all;

 private:
  void step() {
    const char c = text_[at_++];
    if (quote_ != 0) return in_quotes(c);
    if (c == '"' || c == '\'') {
      quote_ = c;
      add("");
    } else if (is_space(c)) {
      is_inside_ = false;
    } else if (c == '#' && !is_inside_) {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (c == '\\') {
      escaped();
    } else {
      add(std::string(1, c));
    }
  }

  void in_quotes(char c) {
    const bool is_escape = quote_ == '"' && c == '\\' && at_ < text_.size() && std::string("\"\\$`").find(text_[at_]) != std::string::npos;
    if (c == quote_)
      quote_ = 0;
    else
      add(std::string(1, is_escape ? text_[at_++] : c));
  }

  // Before a blank, a newline or the end it continues the line.
  void escaped() {
    if (at_ == text_.size() || is_space(text_[at_]))
      is_inside_ = false;
    else
      add(std::string(1, text_[at_++]));
  }

  void add(const std::string& part) {
    if (!is_inside_) all.emplace_back();
    is_inside_ = true;
    all.back() += part;
  }

  const std::string& text_;
  std::size_t at_ = 0;
  char quote_ = 0;
  bool is_inside_ = false;
};

bool is_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && std::isalpha(static_cast<unsigned char>(word[word[1] == '-' ? 2 : 1])) != 0;
}

// Precedes the engine's options: command, module or image.
bool is_command(const std::string& word) {
  if (word == "serve" || word.ends_with(".launch_server") || word.ends_with(".api_server") || word == "launch_server") return true;
  return word.ends_with("/launch_server.py") || word.ends_with("/api_server.py") || word.find("vllm-openai:") != std::string::npos ||
         word.find("/sglang:") != std::string::npos;
}

bool is_assignment(const std::string& word) {
  const std::size_t equals = word.find('=');
  if (equals == 0 || equals == std::string::npos || std::isdigit(static_cast<unsigned char>(word[0])) != 0) return false;
  return std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

// Redirection or another command.
bool ends_command(const std::string& word) {
  return word == "|" || word == "&" || word == "&&" || word == "||" || word == ";" || word.starts_with('>') || word.starts_with("2>") ||
         word.starts_with("1>") || word.starts_with("&>");
}

GivenOption option_of(const std::string& word) {
  const std::size_t equals = word.find('=');
  GivenOption option{word.substr(word.find_first_not_of('-')), false, {}, word};
  option.name = option.name.substr(0, option.name.find_first_of("=."));
  std::replace(option.name.begin(), option.name.end(), '_', '-');
  if (equals != std::string::npos) option.values.push_back(word.substr(equals + 1));
  return option;
}

}  // namespace

EngineCommandLine parse_engine_line(const std::string& text) {
  std::vector<std::string> words = Words(text).all;
  words.erase(std::find_if(words.begin(), words.end(), ends_command), words.end());
  EngineCommandLine line;
  const auto command = std::find_if(words.begin(), words.end(), is_command);
  auto at = words.begin();
  for (const auto end = command == words.end() ? words.begin() : command + 1; at != end; ++at)
    if (is_assignment(*at)) line.environment.push_back(*at);
  for (; at != words.end() && is_assignment(*at); ++at) line.environment.push_back(*at);
  for (; at != words.end(); ++at) {
    if (is_option(*at)) {
      line.options.push_back(option_of(*at));
    } else if (line.options.empty()) {
      line.options.push_back({"model", false, {*at}, *at});
    } else {
      line.options.back().values.push_back(*at);
      line.options.back().text += " " + *at;
    }
  }
  return line;
}

}  // namespace kvlab
