#include "traces/json_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/hash.h"
#include "base/text.h"
#include "base/utf8.h"
#include "traces/csv_rows.h"
#include "traces/numbers.h"
#include "traces/row_reader.h"

namespace kvlab {

namespace {

constexpr char32_t kReplacement = 0xFFFD;

// Takes the four hex digits after "\u"; false if invalid.
bool take_code(std::string_view& text, std::uint32_t& code) {
  if (text.size() < 4) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + 4, code, 16);
  if (error != std::errc{} || end != text.data() + 4) return false;
  text.remove_prefix(4);
  return true;
}

void take_unicode(std::string_view& text, std::string& to) {
  std::uint32_t code = 0;
  if (!take_code(text, code)) return append_utf8(to, kReplacement);
  const bool is_high = code >= 0xD800 && code < 0xDC00;
  std::string_view rest = text;
  std::uint32_t low = 0;
  if (is_high && rest.starts_with("\\u") && (rest.remove_prefix(2), take_code(rest, low)) && low >= 0xDC00 && low < 0xE000) {
    text = rest;
    return append_utf8(to, 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00));
  }
  append_utf8(to, code >= 0xD800 && code < 0xE000 ? kReplacement : code);
}

const char* unit_name(std::int64_t unit_ns) { return unit_ns == 1'000'000'000 ? "seconds" : "milliseconds"; }

constexpr std::string_view kSpace = " \t\r\n";

// Integers of a list after its bracket; the text ends with a line end or a zero byte. False: another list, nothing is appended.
bool append_plain(const char* at, std::vector<std::uint64_t>& to) {
  constexpr int kMostDigits = 19;  // below 2^64
  const std::size_t before = to.size();
  for (;; ++at) {
    while (*at == ' ') ++at;
    const char* const begin = at;
    std::uint64_t number = 0;
    for (; *at >= '0' && *at <= '9'; ++at) number = 10 * number + static_cast<std::uint64_t>(*at - '0');
    const bool is_number = at != begin && at - begin <= kMostDigits && (*begin != '0' || at - begin == 1);
    if (is_number) to.push_back(number);
    if (is_number && *at == ',') continue;
    if (is_number && *at == ']') return true;
    to.resize(before);
    return false;
  }
}

}  // namespace

std::string decode_json_text(std::string_view escaped) {
  constexpr std::string_view kNames = "bfnrt";
  constexpr std::string_view kMeant = "\b\f\n\r\t";
  std::string text;
  text.reserve(escaped.size());
  while (!escaped.empty()) {
    const std::size_t plain = std::min(escaped.find('\\'), escaped.size());
    text += escaped.substr(0, plain);
    escaped.remove_prefix(plain);
    if (escaped.size() < 2) break;
    const char kind = escaped[1];
    escaped.remove_prefix(2);
    if (kind == 'u') {
      take_unicode(escaped, text);
      continue;
    }
    const std::size_t named = kNames.find(kind);
    text += named == std::string_view::npos ? kind : kMeant[named];
  }
  return text;
}

std::size_t num_characters(std::string_view utf8) {
  return static_cast<std::size_t>(std::ranges::count_if(utf8, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// The number as written; all formats share one strict parser.
std::string_view JsonField::scalar_text() {
  switch (value_.type()) {
    case simdjson::ondemand::json_type::number:
      break;
    case simdjson::ondemand::json_type::string:
      fail("a text was found; expected a number");
    case simdjson::ondemand::json_type::array:
      fail("a list was found; expected a number");
    case simdjson::ondemand::json_type::object:
      fail("an object was found; expected a number");
    default:
      fail(quoted(value_.raw_json_token()) + " was found; expected a number");
  }
  std::string_view text = value_.raw_json_token();
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r' || text.back() == '\n')) text.remove_suffix(1);
  // Consumes the value and checks it against JSON's rules.
  if (value_.get_number().error() != simdjson::SUCCESS) fail(quoted(text) + " is not a decimal number that fits 64 bits");
  return text;
}

std::int64_t JsonField::integer(std::int64_t min, std::int64_t max, std::string_view hint) {
  return integer_field(*lines_, key_, scalar_text(), min, max, hint);
}

std::int32_t JsonField::prompt_tokens() { return static_cast<std::int32_t>(integer(1, kMaxTokens, kPromptHint)); }

std::int32_t JsonField::output_tokens() { return static_cast<std::int32_t>(integer(1, kMaxTokens, kOutputHint)); }

Span JsonField::time(std::int64_t unit_ns) { return time_field(*lines_, key_, scalar_text(), unit_ns); }

std::string_view JsonField::text() {
  if (value_.type() != simdjson::ondemand::json_type::string) fail("expected a text in quotes");
  return value_.get_string();
}

std::string JsonField::lenient_text() {
  if (value_.type() != simdjson::ondemand::json_type::string) fail("expected a text in quotes");
  // The token's last quote closes the text.
  const std::string_view token = value_.raw_json_token();
  const std::size_t close = token.rfind('"');
  return decode_json_text(token.substr(1, close - 1));
}

std::string JsonField::raw_text() { return std::string(std::string_view(simdjson::to_json_string(value_))); }

std::int64_t JsonField::instant_ns(std::int64_t unit_ns) {
  const std::string_view text = scalar_text();
  std::int64_t value = 0;
  if (!parse_instant_ns(text, unit_ns, value))
    fail(fmt::format("{} is not a time since 1970: expected a decimal number of {}, 0 or more, of a year before 2200", quoted(text),
                     unit_name(unit_ns)));
  return value;
}

std::int64_t JsonField::time_or_instant_ns(std::int64_t unit_ns) {
  const std::string_view text = scalar_text();
  std::int64_t value = 0;
  if (parse_instant_ns(text, unit_ns, value)) return value;
  value = ns(time_field(*lines_, key_, text, unit_ns));  // 1e3, or throws
  return value;
}

std::string JsonField::name() {
  if (value_.type() == simdjson::ondemand::json_type::string) return std::string(std::string_view(value_.get_string()));
  const std::string text(scalar_text());
  if (text.find_first_not_of("-0123456789") != std::string::npos) fail(kvlab::quoted(text) + " is neither a text nor a whole number");
  return text;
}

void JsonField::id_list(std::vector<std::uint64_t>& to) {
  if (value_.type() != simdjson::ondemand::json_type::array) fail("expected a list of whole numbers or texts");
  if (append_plain(value_.raw_json_token().data() + 1, to)) return;
  for (simdjson::ondemand::value item : value_.get_array()) {
    if (item.type() == simdjson::ondemand::json_type::string) {
      const std::string_view text = item.get_string();
      if (text.empty()) fail("an id in the list is an empty text");
      to.push_back(static_cast<std::uint64_t>(number_of_name(text)));
      continue;
    }
    append_unsigned(item, to);
  }
}

std::int64_t JsonField::session() {
  if (value_.type() == simdjson::ondemand::json_type::string) return number_of_name(value_.get_string());
  return integer(0, std::numeric_limits<std::int64_t>::max());
}

void JsonField::unsigned_list(std::vector<std::uint64_t>& to) {
  if (value_.type() != simdjson::ondemand::json_type::array) fail("expected a list of whole numbers");
  for (simdjson::ondemand::value item : value_.get_array()) append_unsigned(item, to);
}

void JsonField::append_unsigned(simdjson::ondemand::value item, std::vector<std::uint64_t>& to) {
  std::uint64_t number = 0;
  if (item.get_uint64().get(number) != simdjson::SUCCESS)
    fail(quoted(item.raw_json_token()) + " in the list is not a whole number from 0 to 18446744073709551615");
  to.push_back(number);
}

void JsonField::time_list(std::int64_t unit_ns, std::vector<Span>& to) {
  if (value_.type() != simdjson::ondemand::json_type::array) fail("expected a list of times");
  for (simdjson::ondemand::value item : value_.get_array()) to.push_back(JsonField(*lines_, *ignored_, key_, item).time(unit_ns));
}

void fail_syntax(const InputPlace& lines, const char* what) { lines.fail(std::string("not one JSON object: ") + what); }

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
