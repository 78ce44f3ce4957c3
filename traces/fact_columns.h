#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/request_facts.h"
#include "traces/csv_rows.h"
#include "traces/json_rows.h"

namespace kvlab {

// Optional columns of our formats (base/request_facts.h). Times are decimal milliseconds; client and program any text; class at most
// ClassName::kMaxBytes bytes without comma, quote or line end.

// Per request.
inline constexpr std::int64_t kMostImages = 1'000'000;

// `first`: column of kFactColumns[0]. Throws InputError with file:line and column.
void read_facts(const CsvRows& rows, std::size_t first, RequestFacts& facts);
bool has_fact_columns(const CsvRows& rows, std::size_t first);
void read_fact(Fact fact, JsonField& field, RequestFacts& facts);

// ",client,class,..." and ",7,chat,..."; absent fields are empty.
std::string fact_header();
void append_facts_csv(const RequestFacts& facts, std::string& text);
// ",\"client\":7,\"class\":\"chat\"" of given facts.
void append_facts_json(const RequestFacts& facts, std::string& text);

}  // namespace kvlab
