#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "traces/bytes.h"

namespace kvlab {

// The last line or binary record, from 1.
class InputPlace {
 public:
  virtual ~InputPlace() = default;
  [[nodiscard]] virtual const std::string& name() const = 0;
  [[nodiscard]] virtual std::int64_t line_number() const = 0;

  // Throws InputError("name:line: message").
  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void fail(std::string_view column, const std::string& message) const;

  // A parser's position.
  void reached(const char* at) const { reached_ = at; }

 protected:
  InputPlace() = default;
  InputPlace(const InputPlace&) = default;
  InputPlace& operator=(const InputPlace&) = default;
  mutable const char* reached_ = nullptr;
};

// Printable and shortened, on one line.
std::string quoted(std::string_view text);

// Handles \n, \r\n, no last newline, a byte order mark; skips blank lines. Throws InputError for an empty file, a zero byte or a line over
// 64 MiB.
class LineReader final : public InputPlace {
 public:
  static constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;
  static constexpr std::size_t kPadding = 64;  // readable after every line, for SIMD parsers; its first byte is no part of a number

  LineReader(std::string name, std::unique_ptr<ByteSource> bytes);
  explicit LineReader(const std::string& path) : LineReader(path, open_bytes(path)) {}

  // Valid until the next call; false at the end.
  bool next(std::string_view& line);
  // next() repeats the last line.
  void put_back() { again_ = true; }

  // First 256 KiB or all, valid until the next call; only before next().
  std::string_view ahead();
  // Binary; valid until the next call; "" at the end.
  std::string_view next_bytes();
  // Before reading: a byte order mark is data.
  void keep_mark();

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::int64_t line_number() const override { return line_number_; }

 private:
  bool next_raw(std::string_view& line);
  bool refill();

  std::string name_;
  std::unique_ptr<ByteSource> bytes_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // followed by kPadding
  std::int64_t line_number_ = 0;
  std::string_view last_;
  bool at_end_ = false, again_ = false;
};

// Those without effect on serving (request_id, type, model, user, ...) and `ignore_columns`.
class IgnoredColumns {
 public:
  explicit IgnoredColumns(std::vector<std::string> asked = {}) : asked_(std::move(asked)) {}

  // Throws with the nearest of `known` for others.
  void pass_over(const InputPlace& at, std::string_view column, std::span<const std::string_view> known);
  // "2 columns ignored: type, duration", or "".
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::string> asked_, found_;
};

}  // namespace kvlab
