#pragma once

#include <memory>
#include <span>

#include "traces/csv_rows.h"
#include "traces/formats.h"
#include "traces/json_rows.h"
#include "traces/numbers.h"

namespace kvlab {

// One registered reader per file (docs/traces.md). All throw InputError (file:line, column).

inline constexpr std::int64_t kSecondNs = 1'000'000'000;

// The first column is the time.
class CsvReader : public RowReader {
 public:
  using enum CsvColumn::Need;
  CsvReader(std::unique_ptr<LineReader> lines, const ReaderOptions& options, std::span<const CsvColumn> columns, std::int64_t unit_ns)
      : RowReader(options, columns[0].name, unit_ns), rows_(std::move(lines), columns, ignored()) {}
  [[nodiscard]] bool has_arrivals() const final { return rows_.has(0); }

 protected:
  [[nodiscard]] const InputPlace& lines() const final { return rows_.lines(); }
  CsvRows rows_;
};

// One object per line.
class JsonReader : public RowReader {
 public:
  JsonReader(std::unique_ptr<LineReader> lines, const ReaderOptions& options, std::string_view arrival_key, std::int64_t unit_ns)
      : RowReader(options, arrival_key, unit_ns), rows_(std::move(lines), ignored()) {}

 protected:
  [[nodiscard]] const InputPlace& lines() const final { return rows_.lines(); }
  JsonRows rows_;
};

}  // namespace kvlab
