#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file_kind.h"
#include "traces/bytes.h"

namespace kvlab {

void check_replaceable(const std::string& path) {
  if (is_no_regular_file(path)) throw InputError(path + ": is not a regular file and is not replaced by one");
}

namespace {

struct CloseFile {
  void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};

// PATH.part until keep().
class PartFile {
 public:
  explicit PartFile(std::string path) : path_(std::move(path)), part_(path_ + ".part") {
    check_replaceable(path_);
    file_.reset(std::fopen(part_.c_str(), "wb"));
    if (!file_) throw InputError(path_ + ": cannot be written: " + std::strerror(errno));
  }
  ~PartFile() {
    if (!file_) return;
    file_.reset();
    std::error_code ignored;
    std::filesystem::remove(part_, ignored);
  }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  void write(const char* bytes, std::size_t size) {
    if (std::fwrite(bytes, 1, size, file_.get()) != size) throw InputError(path_ + ": cannot be written: " + std::strerror(errno));
  }
  void keep() {
    if (std::fflush(file_.get()) != 0) throw InputError(path_ + ": cannot be written: " + std::strerror(errno));
    std::error_code error;
    std::filesystem::rename(part_, path_, error);
    if (error) throw InputError(path_ + ": cannot be written: " + error.message());
    file_.reset();
  }

 private:
  std::string path_, part_;
  std::unique_ptr<std::FILE, CloseFile> file_;
};

class PlainSink final : public ByteSink {
 public:
  explicit PlainSink(const std::string& path) : file_(path) {}
  void write(std::span<const char> bytes) override { file_.write(bytes.data(), bytes.size()); }
  void close() override { file_.keep(); }

 private:
  PartFile file_;
};

class GzipSink final : public ByteSink {
 public:
  explicit GzipSink(const std::string& path) : file_(path), out_(std::size_t{1} << 16) {
    constexpr int kGzip = 15 + 16;  // largest window; gzip header with time 0, for reproducible bytes
    if (deflateInit2(&stream_, Z_BEST_COMPRESSION, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
      throw InternalError("zlib cannot be started");
    }
  }
  ~GzipSink() override { deflateEnd(&stream_); }
  GzipSink(const GzipSink&) = delete;
  GzipSink& operator=(const GzipSink&) = delete;

  void write(std::span<const char> bytes) override {
    constexpr std::size_t kStep = std::size_t{1} << 30;  // zlib counts in 32 bits
    for (; bytes.size() > kStep; bytes = bytes.subspan(kStep)) pack(bytes.first(kStep), Z_NO_FLUSH);
    pack(bytes, Z_NO_FLUSH);
  }
  void close() override {
    pack({}, Z_FINISH);
    file_.keep();
  }

 private:
  void pack(std::span<const char> bytes, int flush) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    do {
      stream_.next_out = reinterpret_cast<Bytef*>(out_.data());
      stream_.avail_out = static_cast<uInt>(out_.size());
      deflate(&stream_, flush);
      file_.write(out_.data(), out_.size() - stream_.avail_out);
    } while (stream_.avail_out == 0);
  }

  PartFile file_;
  std::vector<char> out_;
  z_stream stream_{};
};

class ZstdSink final : public ByteSink {
 public:
  explicit ZstdSink(const std::string& path) : file_(path), out_(ZSTD_CStreamOutSize()) {
    if (!context_) throw InternalError("zstd cannot be started");
    constexpr int kLevel = 10;
    ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, kLevel);
    ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_checksumFlag, 1);
  }

  void write(std::span<const char> bytes) override { pack(bytes, ZSTD_e_continue); }
  void close() override {
    pack({}, ZSTD_e_end);
    file_.keep();
  }

 private:
  struct Free {
    void operator()(ZSTD_CCtx* context) const noexcept { ZSTD_freeCCtx(context); }
  };

  void pack(std::span<const char> bytes, ZSTD_EndDirective end) {
    ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
    for (;;) {
      ZSTD_outBuffer out{out_.data(), out_.size(), 0};
      const std::size_t left = ZSTD_compressStream2(context_.get(), &out, &in, end);
      if (ZSTD_isError(left) != 0) throw InternalError(std::string("zstd: ") + ZSTD_getErrorName(left));
      file_.write(out_.data(), out.pos);
      if (end == ZSTD_e_end ? left == 0 : in.pos == in.size) return;
    }
  }

  PartFile file_;
  std::vector<char> out_;
  std::unique_ptr<ZSTD_CCtx, Free> context_{ZSTD_createCCtx()};
};

}  // namespace

std::unique_ptr<ByteSink> create_file(const std::string& path) {
  if (path.ends_with(".gz")) return std::make_unique<GzipSink>(path);
  if (path.ends_with(".zst")) return std::make_unique<ZstdSink>(path);
  return std::make_unique<PlainSink>(path);
}

}  // namespace kvlab
