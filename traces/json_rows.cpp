#include "traces/json_rows.h"

#include "base/text.h"
#include "traces/csv_rows.h"
#include "traces/numbers.h"
#include "traces/row_reader.h"

namespace kvlab {

// The number's own characters: what is strict about numbers is decided in one place for all formats.
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
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  // Consumes the value, so that the parser can continue after it, and checks it against JSON's own rules.
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

std::int64_t JsonField::session() {
  if (value_.type() == simdjson::ondemand::json_type::string) return session_number(value_.get_string());
  return integer(0, std::numeric_limits<std::int64_t>::max());
}

void JsonField::unsigned_list(std::vector<std::uint64_t>& to) {
  if (value_.type() != simdjson::ondemand::json_type::array) fail("expected a list of whole numbers");
  for (simdjson::ondemand::value item : value_.get_array()) {
    std::uint64_t number = 0;
    if (item.get_uint64().get(number) != simdjson::SUCCESS) {
      fail(quoted(item.raw_json_token()) + " in the list is not a whole number from 0 to 18446744073709551615");
    }
    to.push_back(number);
  }
}

void fail_syntax(const LineReader& lines, const char* what) { lines.fail(std::string("not one JSON object: ") + what); }

}  // namespace kvlab
