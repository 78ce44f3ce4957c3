#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <optional>

#include "app/claims/claim.h"
#include "base/error.h"
#include "base/quantile.h"
#include "base/text.h"

namespace kvlab {

namespace {

using Tables = Measure::Tables;
using Value = std::function<double(const Tables&)>;

// RUN.COLUMN
struct Column {
  std::string place, run, name;

  [[nodiscard]] std::size_t index(const CsvTable& table) const {
    std::vector<std::size_t> ends_so;
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      if (table.columns[c] == name) return c;
      if (table.columns[c].ends_with("." + name)) ends_so.push_back(c);
    }
    if (ends_so.size() == 1) return ends_so[0];
    throw InputError(fmt::format("{}: unknown metric '{}' of run '{}'{}", place, name, run, suggestion(name, table.columns)));
  }
  [[nodiscard]] std::vector<double> values(const Tables& tables) const {
    const CsvTable& table = tables.at(run);
    const std::size_t at = index(table);
    std::vector<double> all;
    for (std::size_t r = 0; r < table.rows.size(); ++r) {
      double value = 0;
      if (!parse_real(table.rows[r][at], value))
        throw InputError(
            fmt::format("{}: '{}.{}' has no number in row {} of {} ('{}')", place, run, name, r + 1, table.file, table.rows[r][at]));
      all.push_back(value);
    }
    if (all.empty()) throw InputError(fmt::format("{}: run '{}' has no rows", place, run));
    return all;
  }
};

struct Limit {
  Column column;
  bool is_most = true;  // else least
  double value = 0;

  [[nodiscard]] bool holds(double x) const { return is_most ? x <= value : x >= value; }
};

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

using Statistic = double (*)(const std::vector<double>&);

const std::map<std::string, Statistic>& statistics() {
  static const std::map<std::string, Statistic> all = {
      {"mean", mean},
      {"median", [](const std::vector<double>& v) { return median(v); }},
      {"min", [](const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); }},
      {"max", [](const std::vector<double>& v) { return *std::max_element(v.begin(), v.end()); }}};
  return all;
}

double largest_within(const Column& column, const std::vector<Limit>& limits, const Tables& tables) {
  const std::vector<double> values = column.values(tables);
  std::vector<bool> meets(values.size(), true);
  for (const Limit& limit : limits) {
    const std::vector<double> limited = limit.column.values(tables);
    for (std::size_t r = 0; r < values.size(); ++r) meets[r] = meets[r] && limit.holds(limited[r]);
  }
  std::optional<double> best;
  for (std::size_t r = 0; r < values.size(); ++r)
    if (meets[r]) best = std::max(best.value_or(values[r]), values[r]);
  const std::string what = fmt::format("{}: 'largest({}.{})'", column.place, column.run, column.name);
  if (!best) throw InputError(what + ": no row is within the limits: add smaller values to the axis");
  if (*best == *std::max_element(values.begin(), values.end()))
    throw InputError(
        fmt::format("{}: the largest of all, {}, is within the limits: add larger values to the axis", what, number_text(*best)));
  return *best;
}

// Recursive descent over sums of products of factors.
class Parser {
 public:
  Parser(const std::string& text, std::string place, const std::vector<std::string>& runs)
      : text_(text), place_(std::move(place)), runs_(runs) {}

  Value parse() {
    Value all = sum();
    if (!is_at_end()) fail(fmt::format("expected + - * / or the end, found '{}'", text_.substr(at_)));
    return all;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw InputError(place_ + ": measure '" + text_ + "': " + message); }
  bool is_at_end() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return at_ == text_.size();
  }
  bool take(std::string_view token) {
    if (is_at_end() || text_.compare(at_, token.size(), token) != 0) return false;
    at_ += token.size();
    return true;
  }
  void need(std::string_view token) {
    if (!take(token)) fail(fmt::format("expected '{}' {}", token, is_at_end() ? "at its end" : "before '" + text_.substr(at_) + "'"));
  }
  std::string word(const char* also) {
    is_at_end();
    const std::size_t begin = at_;
    const auto is_part = [&](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string_view(also).find(c) != std::string_view::npos;
    };
    while (at_ < text_.size() && is_part(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  Value sum() {
    Value left = product();
    for (;;) {
      const bool adds = take("+");
      if (!adds && !take("-")) return left;
      left = [a = std::move(left), b = product(), sign = adds ? 1.0 : -1.0](const Tables& t) { return a(t) + sign * b(t); };
    }
  }
  Value product() {
    Value left = factor();
    for (;;) {
      if (take("*"))
        left = [a = std::move(left), b = factor()](const Tables& t) { return a(t) * b(t); };
      else if (take("/"))
        left = quotient(std::move(left), factor());
      else
        return left;
    }
  }
  [[nodiscard]] Value quotient(Value a, Value b) const {
    return [a = std::move(a), b = std::move(b), where = place_ + ": measure '" + text_ + "'"](const Tables& t) {
      const double divisor = b(t);
      if (divisor == 0) throw InputError(where + ": division by zero");
      return a(t) / divisor;
    };
  }
  Value factor() {
    if (take("(")) {
      Value inner = sum();
      need(")");
      return inner;
    }
    if (take("-")) return [inner = factor()](const Tables& t) { return -inner(t); };
    if (is_at_end()) fail("ends where a number or RUN.METRIC is expected");
    if (std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) return [value = number()](const Tables&) { return value; };
    const std::size_t before = at_;
    const std::string name = word("_");
    if (take("(")) return function(name);
    at_ = before;
    return [column = column_name()](const Tables& t) { return mean(column.values(t)); };
  }
  double number() {
    const std::string digits = word(".");
    double value = 0;
    if (!parse_real(digits, value)) fail("'" + digits + "' is no number");
    return value;
  }
  Column column_name() {
    const std::string name = word("_.");
    const std::size_t dot = name.find('.');
    if (dot == std::string::npos || dot == 0 || dot + 1 == name.size())
      fail(fmt::format("expected RUN.METRIC, such as {}.output_tokens_per_s, found '{}'", runs_.front(),
                       name.empty() ? text_.substr(at_) : name));
    const std::string run = name.substr(0, dot);
    if (std::find(runs_.begin(), runs_.end(), run) == runs_.end()) fail("unknown run '" + run + "'" + suggestion(run, runs_));
    return {place_, run, name.substr(dot + 1)};
  }
  Value function(const std::string& name) {
    if (name == "largest") return largest();
    const auto found = statistics().find(name);
    if (found == statistics().end())
      fail("unknown function '" + name + "'" + suggestion(name, {"mean", "median", "min", "max", "largest"}));
    const Column column = column_name();
    need(")");
    return [column, statistic = found->second](const Tables& t) { return statistic(column.values(t)); };
  }
  Value largest() {
    const Column column = column_name();
    std::vector<Limit> limits;
    while (take(",")) {
      Limit limit{column_name()};
      if (limit.column.run != column.run) fail("limits of 'largest' are of one run: '" + column.run + "'");
      limit.is_most = take("<=");
      if (!limit.is_most) need(">=");
      is_at_end();
      limit.value = number();
      limits.push_back(limit);
    }
    need(")");
    return [column, limits](const Tables& t) { return largest_within(column, limits, t); };
  }

  const std::string& text_;
  std::string place_;
  const std::vector<std::string>& runs_;
  std::size_t at_ = 0;
};

}  // namespace

Measure Measure::parse(const std::string& text, const std::string& place, const std::vector<std::string>& runs) {
  Measure measure;
  measure.text = text;
  measure.value = Parser(measure.text, place, runs).parse();
  return measure;
}

}  // namespace kvlab
