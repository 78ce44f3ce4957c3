#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/request_facts.h"
#include "traces/csv_rows.h"
#include "traces/json_rows.h"

namespace kvlab {

// The optional columns of our own formats (base/request_facts.h), read and written. Times are decimal milliseconds; a client or program is
// a number or any other text; a class is a text of at most ClassName::kMaxBytes bytes without comma, quote or line end.

// Images of a request.
inline constexpr std::int64_t kMostImages = 1'000'000;

// Reads those that the row gives; column `first` of `rows` is the first of kFactColumns. InputError with file:line and column.
void read_facts(const CsvRows& rows, std::size_t first, RequestFacts& facts);
// If the file has one of these columns.
bool has_fact_columns(const CsvRows& rows, std::size_t first);
// Reads one key.
void read_fact(Fact fact, JsonField& field, RequestFacts& facts);

// ",client,class,...", then for each row ",7,chat,..." with nothing where a fact is not given.
std::string fact_header();
void append_facts_csv(const RequestFacts& facts, std::string& text);
// ",\"client\":7,\"class\":\"chat\"" of the facts that are given.
void append_facts_json(const RequestFacts& facts, std::string& text);

}  // namespace kvlab
