#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "traces/bytes.h"
#include "traces/input_place.h"

namespace kvlab {

// The lines of a text file, one at a time, in memory that does not depend on the file's size. Handles \n and \r\n, a
// missing last newline and a UTF-8 byte order mark; passes over blank lines. Errors (InputError): an empty file, a zero
// byte, a line longer than 64 MiB.
class LineReader final : public InputPlace {
 public:
  static constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;
  static constexpr std::size_t kPadding = 64;  // readable bytes after every line, as SIMD parsers need them

  LineReader(std::string name, std::unique_ptr<ByteSource> bytes);
  explicit LineReader(const std::string& path) : LineReader(path, open_bytes(path)) {}

  // The next line without its end, valid until the next call; false at the end of the file.
  bool next(std::string_view& line);
  // Makes next() return the line just read once more.
  void put_back() { again_ = true; }

  // The begin of the file, 256 KiB of it or all. Valid until the next call of any kind; only before the first of next().
  std::string_view ahead();
  // For files that are not made of lines: the next bytes, valid until the next call; "" at the end.
  std::string_view next_bytes();
  // Before anything is read: a byte order mark is data, too.
  void keep_mark();

  [[nodiscard]] const std::string& name() const override { return name_; }
  // The number of the line that next() returned last, from 1.
  [[nodiscard]] std::int64_t line_number() const override { return line_number_; }

 private:
  bool next_raw(std::string_view& line);
  bool refill();

  std::string name_;
  std::unique_ptr<ByteSource> bytes_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // unread bytes of buffer_; kPadding bytes after end_ are there too
  std::int64_t line_number_ = 0;
  std::string_view last_;
  bool at_end_ = false, again_ = false;
};

}  // namespace kvlab
