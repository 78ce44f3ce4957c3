#include "traces/fact_columns.h"

#include <fmt/format.h>

#include <iterator>
#include <limits>

#include "base/text.h"
#include "traces/numbers.h"
#include "traces/row_reader.h"

namespace kvlab {

namespace {

constexpr std::int64_t kMsNs = 1'000'000;
constexpr std::int64_t kMostPriority = 1'000'000'000;
constexpr std::int64_t kMostTurns = 1'000'000'000;

// `fail` throws a message with the place.
template <class Fail>
ClassName class_of(std::string_view text, Fail&& fail) {
  if (text.size() > ClassName::kMaxBytes)
    fail(fmt::format("{} has {} bytes; the name of a class has at most {}", quoted(text), text.size(), ClassName::kMaxBytes));
  if (text.find_first_of("\",\n\r\\") != std::string_view::npos) fail("the name of a class has no comma, quote, backslash or line end");
  return ClassName(text);
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
  switch (fact) {
    case Fact::kClient:
      return std::to_string(facts.client);
    case Fact::kClass:
      return std::string(facts.request_class.text());
    case Fact::kPriority:
      return std::to_string(facts.priority);
    case Fact::kTtftSlo:
      return milliseconds(facts.ttft_slo);
    case Fact::kTpotSlo:
      return milliseconds(facts.tpot_slo);
    case Fact::kTbtSlo:
      return milliseconds(facts.tbt_slo);
    case Fact::kPredictedOutput:
      return std::to_string(facts.predicted_output);
    case Fact::kProgram:
      return std::to_string(facts.program);
    case Fact::kTurn:
      return std::to_string(facts.turn);
    case Fact::kImages:
      return std::to_string(facts.images);
  }
  return "";
}

}  // namespace

bool has_fact_columns(const CsvRows& rows, std::size_t first) {
  for (std::size_t i = 0; i < kFactColumns.size(); ++i)
    if (rows.has(first + i)) return true;
  return false;
}

void read_facts(const CsvRows& rows, std::size_t first, RequestFacts& facts) {
  facts = {};
  const auto given = [&](Fact fact) {
    const std::size_t column = first + static_cast<std::size_t>(fact);
    return rows.has(column) && !rows.text(column).empty();
  };
  const auto at = [&](Fact fact) { return first + static_cast<std::size_t>(fact); };
  const auto integer = [&](Fact fact, std::int64_t min, std::int64_t max) {
    return static_cast<std::int32_t>(rows.integer(at(fact), min, max));
  };
  if (given(Fact::kClient)) facts.client = session_number(rows.text(at(Fact::kClient)));
  if (given(Fact::kClass))
    facts.request_class = class_of(rows.text(at(Fact::kClass)), [&](const std::string& message) { rows.fail(at(Fact::kClass), message); });
  if (given(Fact::kPriority)) facts.priority = integer(Fact::kPriority, -kMostPriority, kMostPriority);
  if (given(Fact::kTtftSlo)) facts.ttft_slo = rows.time(at(Fact::kTtftSlo), kMsNs);
  if (given(Fact::kTpotSlo)) facts.tpot_slo = rows.time(at(Fact::kTpotSlo), kMsNs);
  if (given(Fact::kTbtSlo)) facts.tbt_slo = rows.time(at(Fact::kTbtSlo), kMsNs);
  if (given(Fact::kPredictedOutput)) facts.predicted_output = integer(Fact::kPredictedOutput, 1, kMaxTokens);
  if (given(Fact::kProgram)) facts.program = session_number(rows.text(at(Fact::kProgram)));
  if (given(Fact::kTurn)) facts.turn = integer(Fact::kTurn, 0, kMostTurns);
  if (given(Fact::kImages)) facts.images = integer(Fact::kImages, 0, kMostImages);
}

void read_fact(Fact fact, JsonField& field, RequestFacts& facts) {
  switch (fact) {
    case Fact::kClient:
      facts.client = field.session();
      break;
    case Fact::kClass:
      facts.request_class = class_of(field.text(), [&](const std::string& message) { field.fail(message); });
      break;
    case Fact::kPriority:
      facts.priority = static_cast<std::int32_t>(field.integer(-kMostPriority, kMostPriority));
      break;
    case Fact::kTtftSlo:
      facts.ttft_slo = field.time(kMsNs);
      break;
    case Fact::kTpotSlo:
      facts.tpot_slo = field.time(kMsNs);
      break;
    case Fact::kTbtSlo:
      facts.tbt_slo = field.time(kMsNs);
      break;
    case Fact::kPredictedOutput:
      facts.predicted_output = static_cast<std::int32_t>(field.integer(1, kMaxTokens));
      break;
    case Fact::kProgram:
      facts.program = field.session();
      break;
    case Fact::kTurn:
      facts.turn = static_cast<std::int32_t>(field.integer(0, kMostTurns));
      break;
    case Fact::kImages:
      facts.images = static_cast<std::int32_t>(field.integer(0, kMostImages));
      break;
  }
}

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
