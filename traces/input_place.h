#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvlab {

// The place in an input that was read last, for messages. Lines of a text file count from 1; so do records of a binary file.
class InputPlace {
 public:
  virtual ~InputPlace() = default;
  [[nodiscard]] virtual const std::string& name() const = 0;
  [[nodiscard]] virtual std::int64_t line_number() const = 0;

  // Stops (InputError) with "name:line: message", or with the column as well.
  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void fail(std::string_view column, const std::string& message) const;

  // Notes how far a parser has come in the bytes of a document that has several lines.
  void reached(const char* at) const { reached_ = at; }

 protected:
  InputPlace() = default;
  InputPlace(const InputPlace&) = default;
  InputPlace& operator=(const InputPlace&) = default;
  mutable const char* reached_ = nullptr;
};

// `text` as it may appear in a one-line message: printable, in quotes, cut to a length that can be read.
std::string quoted(std::string_view text);

}  // namespace kvlab
