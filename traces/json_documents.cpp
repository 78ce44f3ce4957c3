#include "traces/json_documents.h"

#include <algorithm>

namespace kvlab {

namespace {

constexpr std::string_view kSpace = " \t\r\n";

}  // namespace

std::int64_t JsonDocuments::Place::line_number() const {
  const char* const begin = text_.data();
  if (reached_ < begin || reached_ > begin + text_.size()) return first_line_;
  return first_line_ + std::count(begin, reached_, '\n');
}

bool JsonDocuments::Place::refill() {
  if (bytes_.empty()) bytes_ = lines_->next_bytes();
  return !bytes_.empty();
}

bool JsonDocuments::Place::find_object() {
  while (refill()) {
    const char c = bytes_.front();
    if (c == '{' && !is_over_) return true;
    const bool opens_list = c == '[' && !is_list_ && text_.empty();
    const bool closes_list = c == ']' && is_list_ && !is_over_;
    first_line_ = line_;
    if (kSpace.find(c) == std::string_view::npos && !opens_list && !closes_list && !(c == ',' && is_list_))
      fail(quoted(bytes_.substr(0, 20)) + " was found where a JSON object begins with {");
    if (opens_list) is_list_ = true;
    if (closes_list) is_over_ = true;
    if (c == '\n') ++line_;
    bytes_.remove_prefix(1);
  }
  first_line_ = line_;
  if (is_list_ && !is_over_) fail("the file ends before the list is closed with ]");
  return false;
}

void JsonDocuments::Place::take_until_closed() {
  int depth = 0;
  bool in_text = false, is_escaped = false;
  while (refill()) {
    std::size_t taken = 0;
    bool is_closed = false;
    for (; taken < bytes_.size() && !is_closed; ++taken) {
      const char c = bytes_[taken];
      if (c == '\n') ++line_;
      if (in_text) {
        if (is_escaped)
          is_escaped = false;
        else if (c == '\\')
          is_escaped = true;
        else if (c == '"')
          in_text = false;
      } else if (c == '"') {
        in_text = true;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if (c == '}' || c == ']') {
        is_closed = --depth == 0;
      }
    }
    text_.append(bytes_.substr(0, taken));
    bytes_.remove_prefix(taken);
    if (is_closed) return;
  }
  first_line_ = line_;
  reached_ = nullptr;
  fail("the file ends inside of a JSON object");
}

bool JsonDocuments::Place::take_object() {
  reached_ = nullptr;
  if (!find_object()) return false;
  first_line_ = line_;
  text_.clear();
  take_until_closed();
  if (text_.size() >> 32 != 0) fail("the object is longer than 4 GiB");
  text_.reserve(text_.size() + LineReader::kPadding);
  return true;
}

}  // namespace kvlab
