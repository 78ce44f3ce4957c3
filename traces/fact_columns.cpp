#include "traces/fact_columns.h"

#include <fmt/format.h>

#include <iterator>

#include "base/text.h"
#include "traces/numbers.h"
#include "traces/row_reader.h"

namespace kvlab {

namespace {

constexpr std::int64_t kMsNs = 1'000'000;
constexpr std::int64_t kMostPriority = 1'000'000'000;
constexpr std::int64_t kMostTurns = 1'000'000'000;

template <class Field>
ClassName class_of(Field& field) {
  const std::string_view text = field.text();
  if (text.size() > ClassName::kMaxBytes)
    field.fail(fmt::format("{} has {} bytes; the name of a class has at most {}", quoted(text), text.size(), ClassName::kMaxBytes));
  if (text.find_first_of("\",\n\r\\") != std::string_view::npos)
    field.fail("the name of a class has no comma, quote, backslash or line end");
  return ClassName(text);
}

// As JsonField.
struct CsvField {
  const CsvRows& rows;
  std::size_t column;
  [[nodiscard]] std::string_view text() const { return rows.text(column); }
  [[nodiscard]] std::int64_t session() const { return number_of_name(text()); }
  [[nodiscard]] std::int64_t integer(std::int64_t min, std::int64_t max) const { return rows.integer(column, min, max); }
  [[nodiscard]] Span time(std::int64_t unit_ns) const { return rows.time(column, unit_ns); }
  [[noreturn]] void fail(const std::string& message) const { rows.fail(column, message); }
};

template <class Field>
void read_from(Field& field, Fact fact, RequestFacts& facts) {
  const auto integer = [&](std::int64_t min, std::int64_t max) { return static_cast<std::int32_t>(field.integer(min, max)); };
  if (fact == Fact::kClient) facts.client = field.session();
  if (fact == Fact::kClass) facts.request_class = class_of(field);
  if (fact == Fact::kPriority) facts.priority = integer(-kMostPriority, kMostPriority);
  if (fact == Fact::kTtftSlo) facts.ttft_slo = field.time(kMsNs);
  if (fact == Fact::kTpotSlo) facts.tpot_slo = field.time(kMsNs);
  if (fact == Fact::kTbtSlo) facts.tbt_slo = field.time(kMsNs);
  if (fact == Fact::kPredictedOutput) facts.predicted_output = integer(1, kMaxTokens);
  if (fact == Fact::kProgram) facts.program = field.session();
  if (fact == Fact::kTurn) facts.turn = integer(0, kMostTurns);
  if (fact == Fact::kImages) facts.images = integer(0, kMostImages);
}

std::string milliseconds(Span span) {
  std::string text = fmt::format("{}.{:06}", ns(span) / kMsNs, ns(span) % kMsNs);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

// Unquoted; "" if not given.
std::string text_of(const RequestFacts& facts, Fact fact) {
  if (!has_fact(&facts, fact)) return "";
  if (fact == Fact::kClass) return std::string(facts.request_class.text());
  if (fact == Fact::kTtftSlo) return milliseconds(facts.ttft_slo);
  if (fact == Fact::kTpotSlo) return milliseconds(facts.tpot_slo);
  if (fact == Fact::kTbtSlo) return milliseconds(facts.tbt_slo);
  if (fact == Fact::kPriority) return std::to_string(facts.priority);
  if (fact == Fact::kPredictedOutput) return std::to_string(facts.predicted_output);
  if (fact == Fact::kTurn) return std::to_string(facts.turn);
  if (fact == Fact::kImages) return std::to_string(facts.images);
  return std::to_string(fact == Fact::kClient ? facts.client : facts.program);
}

}  // namespace

bool has_fact_columns(const CsvRows& rows, std::size_t first) {
  for (std::size_t i = 0; i < kFactColumns.size(); ++i)
    if (rows.has(first + i)) return true;
  return false;
}

void read_facts(const CsvRows& rows, std::size_t first, RequestFacts& facts) {
  facts = {};
  for (std::size_t i = 0; i < kFactColumns.size(); ++i) {
    CsvField field{rows, first + i};
    if (rows.has(field.column) && !field.text().empty()) read_from(field, static_cast<Fact>(i), facts);
  }
}

void read_fact(Fact fact, JsonField& field, RequestFacts& facts) { read_from(field, fact, facts); }

std::string fact_header() {
  std::string text;
  for (const std::string_view column : kFactColumns) (text += ',') += column;
  return text;
}

void append_facts_csv(const RequestFacts& facts, std::string& text) {
  for (std::size_t i = 0; i < kFactColumns.size(); ++i) (text += ',') += text_of(facts, static_cast<Fact>(i));
}

void append_facts_json(const RequestFacts& facts, std::string& text) {
  for (std::size_t i = 0; i < kFactColumns.size(); ++i) {
    const auto fact = static_cast<Fact>(i);
    if (!has_fact(&facts, fact)) continue;
    const std::string_view quote = fact == Fact::kClass ? "\"" : "";
    fmt::format_to(std::back_inserter(text), ",\"{}\":{}{}{}", kFactColumns[i], quote, text_of(facts, fact), quote);
  }
}

}  // namespace kvlab
