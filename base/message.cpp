#include "base/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace kvlab {

namespace {

constexpr std::size_t kLongestWord = 200, kShownOfWord = 60, kLongestMessage = 4000;

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// At most `most` bytes, whole UTF-8 characters.
std::string beginning(const std::string& text, std::size_t most) {
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) --most;
  return text.substr(0, most);
}

// "cannot copy file" of "filesystem error: cannot copy file: No space left on device [a] [b]".
std::string action_of(const std::filesystem::filesystem_error& error) {
  const std::string text = error.what(), title = "filesystem error: ";
  const std::size_t begin = text.starts_with(title) ? title.size() : 0, end = text.find(": ", begin);
  return end == std::string::npos ? "cannot be used" : text.substr(begin, end - begin);
}

}  // namespace

std::string short_message(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto end =
        static_cast<std::size_t>(std::find_if(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(), is_blank) - text.begin());
    const std::size_t size = end - at;
    const std::string word = text.substr(at, size);
    out += size <= kLongestWord ? word : fmt::format("{}... ({} characters)", beginning(word, kShownOfWord), size);
    for (at = end; at < text.size() && is_blank(text[at]); ++at) out += text[at];
  }
  return out.size() <= kLongestMessage ? out : beginning(out, kLongestMessage) + "...";
}

std::string message_of(const std::exception& error) {
  std::string text = error.what();
  if (const auto* const of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    const std::filesystem::path& path = of_files->path2().empty() ? of_files->path1() : of_files->path2();
    text = fmt::format("{}: {}: {}", path.string(), action_of(*of_files), of_files->code().message());
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return short_message(text);
}

}  // namespace kvlab
