#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace kvlab {

// A stream of bytes to read once, front to back.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills at most `size` > 0 bytes and returns their number; 0 only at the end. Throws InputError when the bytes are damaged.
  virtual std::size_t read(char* to, std::size_t size) = 0;
};

// The content of a file, or of a pipe of the shell (/dev/stdin, /dev/fd/N), decompressed if its first bytes are those of gzip
// (RFC 1952) or Zstandard (RFC 8878), whatever its name says. Errors: cannot be opened or read, is a directory, a named pipe, a
// device or a Git LFS pointer.
std::unique_ptr<ByteSource> open_bytes(const std::string& path);

// The same for bytes in memory, which must outlive the source. `name` is the file's name in messages.
std::unique_ptr<ByteSource> bytes_in_memory(const std::string& name, std::span<const char> bytes);

// Writes a file, compressed if its name ends in .gz or .zst. The bytes go to PATH.part, which becomes PATH in close(); without close() no
// file remains.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void write(std::span<const char> bytes) = 0;
  virtual void close() = 0;
};
std::unique_ptr<ByteSink> create_file(const std::string& path);
// Error (InputError): `path` is a directory, a pipe or a device like /dev/null, which must not be replaced by a file. create_file() checks
// this too; call it before hours of work.
void check_replaceable(const std::string& path);

}  // namespace kvlab
