#include "base/safetensors.h"

#include <rapidcheck.h>
#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/half.h"
#include "tests/traces/trace_test_files.h"
#include "traces/write_safetensors.h"

namespace kvlab {
namespace {

std::string length_of(std::uint64_t header_bytes) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &header_bytes, 8);
  return text;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A whole file as the format's page describes it, made here by hand.
struct Bytes {
  std::string text;
  Bytes(const std::string& header, const std::string& data) : text(length_of(header.size()) + header + data) {}
  explicit Bytes(std::string whole) : text(std::move(whole)) {}
  [[nodiscard]] SafetensorsFile file() const { return SafetensorsFile::from_bytes("f", std::as_bytes(std::span(text))); }
};

std::string error_in(const std::string& header, std::size_t data_bytes = 0) {
  return error_of([&] { return Bytes(header, std::string(data_bytes, '\0')).file(); });
}

TEST(Half, EveryValueSurvives) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    const float value = half_to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value))));
    } else {
      ASSERT_EQ(float_to_half(value), half) << value;
    }
    if (!std::isnan(bfloat16_to_float(half))) {
      ASSERT_EQ(float_to_bfloat16(bfloat16_to_float(half)), half);
    }
  }
}

TEST(Half, KnownValuesAndRounding) {
  EXPECT_EQ(float_to_half(1.0F), 0x3c00);
  EXPECT_EQ(float_to_half(-2.5F), 0xc100);
  EXPECT_EQ(float_to_half(65504.0F), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0F), 0x7c00);  // halfway to 65536, which is infinite
  EXPECT_EQ(float_to_half(std::nextafter(65520.0F, 0.0F)), 0x7bff);
  EXPECT_EQ(float_to_half(0x1p-24F), 1);
  EXPECT_EQ(float_to_half(0x1p-25F), 0);    // a tie goes to the even 0
  EXPECT_EQ(float_to_half(0x1.8p-24F), 2);  // a tie goes to the even 2
  EXPECT_EQ(float_to_half(1.0F + 0x1p-11F), 0x3c00);
  EXPECT_EQ(float_to_half(1.0F + 0x1.8p-10F), 0x3c02);
  EXPECT_EQ(half_to_float(0x0001), 0x1p-24F);
  EXPECT_EQ(half_to_float(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(float_to_bfloat16(1.0F + 0x1p-8F), 0x3f80);
  EXPECT_EQ(float_to_bfloat16(1.0F + 0x1.8p-7F), 0x3f82);
  EXPECT_EQ(bfloat16_to_float(0xc020), -2.5F);
}

TEST(Half, NearestOfAllHalves) {
  rc::check("no half lies nearer", [] {
    const auto bits = *rc::gen::arbitrary<std::uint32_t>();
    const auto value = std::bit_cast<float>(bits & 0x7fffffffU);
    RC_PRE(value < 65504.0F);
    const std::uint16_t half = float_to_half(value);
    const double off = std::fabs(static_cast<double>(value) - static_cast<double>(half_to_float(half)));
    for (const int step : {-1, 1}) {
      if (half == 0 && step < 0) continue;
      const auto neighbour = static_cast<double>(half_to_float(static_cast<std::uint16_t>(half + step)));
      const double other = std::fabs(static_cast<double>(value) - neighbour);
      RC_ASSERT(off < other || (off == other && half % 2 == 0));
    }
  });
}

TEST(Safetensors, ReadsAFileMadeByHand) {
  const std::string data = bytes_of<float>({1.5F, -2}) + bytes_of<std::uint16_t>({0x3c00, 0xc100}) + bytes_of<std::uint16_t>({0x4020}) +
                           bytes_of<double>({0.25}) + bytes_of<std::int32_t>({-7}) + bytes_of<std::int64_t>({1LL << 31, -5});
  const Bytes bytes(R"({"f": {"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}, "h":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},
    "b":{"data_offsets":[12,14],"shape":[],"dtype":"BF16"},"d":{"dtype":"F64","shape":[1],"data_offsets":[14,22]},
    "i":{"dtype":"I32","shape":[1],"data_offsets":[22,26]},"l":{"dtype":"I64","shape":[2],"data_offsets":[26,42]},
    "__metadata__":{"format":"pt","a\"b":"\u00e4"}, "empty":{"dtype":"U8","shape":[0,9223372036854775807,8],"data_offsets":[42,42]}} )",
                    data);
  const SafetensorsFile file = bytes.file();
  EXPECT_EQ(file.tensors().size(), 7U);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"a\"b", "\xc3\xa4"}}));
  EXPECT_EQ(std::tuple(file.has("f"), file.has("g"), file.info("f").dtype), std::tuple(true, false, "F32"));
  EXPECT_EQ(file.info("f").shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(file.floats("f", {2, -1}), (std::vector<float>{1.5F, -2}));
  EXPECT_EQ(file.floats("h", {2}), (std::vector<float>{1, -2.5F}));
  EXPECT_EQ(file.floats("b"), (std::vector<float>{2.5F}));
  EXPECT_EQ(file.floats("d"), (std::vector<float>{0.25F}));
  EXPECT_EQ(file.ints("i"), (std::vector<std::int32_t>{-7}));
  EXPECT_EQ(file.raw("h").size(), 4U);
  EXPECT_EQ(std::memcmp(file.raw("h").data(), data.data() + 8, 4), 0);
  EXPECT_TRUE(file.raw("empty").empty());
  EXPECT_EQ(error_of([&] { return file.ints("l"); }), "f: tensor 'l' has 2147483648 at [0], beyond 32 bits");
}

TEST(Safetensors, FilesThatCannotBeOpened) {
  const TempFolder folder;
  const std::string none = folder.file("none.safetensors");
  EXPECT_EQ(error_of([&] { return SafetensorsFile::open(none); }), none + ": cannot be opened: No such file or directory");
  EXPECT_EQ(error_of([&] { return SafetensorsFile::open("/"); }), "/: is not a regular file; a safetensors file is expected");
  const std::string pipe = folder.file("pipe.safetensors");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { return SafetensorsFile::open(pipe); }), pipe + ": is not a regular file; a safetensors file is expected");
  const float one = 1;
  EXPECT_EQ(error_of([&] {
              return write_safetensors(pipe, {{"a", "F32", {1}, &one}}, {});
            }),
            pipe + ": is not a regular file and is not replaced by one");
  const std::string pointer = folder.write("pointer.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n");
  EXPECT_EQ(error_of([&] { return SafetensorsFile::open(pointer); }),
            pointer + ": is a Git LFS pointer, not the file that it stands for; 'git lfs pull' fetches that");
  const std::string empty = folder.write("empty.safetensors", "");
  EXPECT_EQ(error_of([&] { return SafetensorsFile::open(empty); }), empty + ": cut short: 0 bytes, and the header's length alone takes 8");
}

TEST(Safetensors, DamagedHeaders) {
  const auto whole = [](const std::string& text) { return error_of([&] { return Bytes(text).file(); }); };
  EXPECT_EQ(whole("1234567"), "f: cut short: 7 bytes, and the header's length alone takes 8");
  EXPECT_EQ(whole(length_of(3) + "{}"), "f: cut short: the header ends at byte 11, the file at byte 10");
  EXPECT_EQ(whole(length_of(100'000'000)), "f: cut short: the header ends at byte 100000008, the file at byte 8");
  EXPECT_EQ(whole(length_of(100'000'001)), "f: a header of 100000001 bytes, at most 100000000 are allowed; is it a safetensors file?");
  EXPECT_EQ(whole(length_of(~0ULL)), "f: a header of 18446744073709551615 bytes, at most 100000000 are allowed; is it a safetensors file?");
  EXPECT_EQ(error_in(""), "f: the header is not one JSON object: syntax error");
  EXPECT_EQ(error_in("nonsense"), "f: the header is not one JSON object: a value is of another kind than this format has there");
  EXPECT_EQ(error_in(R"({"__metadata__" {}})"), "f: the header is not one JSON object: syntax error");
  EXPECT_EQ(error_in("[]"), "f: the header is not one JSON object: a value is of another kind than this format has there");
  EXPECT_EQ(error_in("{} {}"), "f: the header is not one JSON object: text behind the closing brace");
  EXPECT_EQ(error_in(R"({"a": {"dtype":"F32")"), "f: the header is not one JSON object: it ends before the closing brace");
  EXPECT_EQ(error_in(R"({"a)"), "f: the header is not one JSON object: a text has no closing quote");
  EXPECT_EQ(error_in("{\"\xff\": {}}"), "f: the header is not one JSON object: it is not UTF-8 text");
}

TEST(Safetensors, DamagedEntries) {
  const auto entry = [](const std::string& fields, std::size_t data_bytes = 0) {
    return error_in("{\"a\": {" + fields + "}}", data_bytes);
  };
  EXPECT_EQ(error_in(R"({"a": 5})"), "f: tensor 'a' is not an object in the header");
  EXPECT_EQ(entry(R"("shape":[1],"data_offsets":[0,4])"), "f: tensor 'a' has no 'dtype'");
  EXPECT_EQ(entry(R"("dtype":"F32","data_offsets":[0,4])"), "f: tensor 'a' has no 'shape'");
  EXPECT_EQ(entry(R"("dtype":"F32","shape":[1])"), "f: tensor 'a' has no 'data_offsets'");
  EXPECT_EQ(entry(R"("dtype":"F32","dtype":"F32")"), "f: tensor 'a' has 'dtype' twice");
  EXPECT_EQ(entry(R"("dtype":"F32","shapes":[1])"), "f: tensor 'a' has the unknown field 'shapes'; did you mean 'shape'?");
  EXPECT_EQ(entry(R"("dtype":"F31","shape":[1],"data_offsets":[0,4])"), "f: tensor 'a' has the unknown dtype 'F31'");
  EXPECT_EQ(entry(R"("dtype":3)"), "f: tensor 'a': 'dtype' is not a text");
  for (const char* shape : {"[-1]", "[1.0]", "[\"1\"]", "4", "[[1]]", "[9223372036854775808]"})
    EXPECT_EQ(entry("\"dtype\":\"F32\",\"shape\":" + std::string(shape)), "f: tensor 'a': 'shape' is not a list of whole numbers >= 0")
        << shape;
  EXPECT_EQ(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), "f: tensor 'a': 'data_offsets' is not [begin, end]");
  EXPECT_EQ(entry(R"("dtype":"F32","shape":[1],"data_offsets":[8,4])"), "f: tensor 'a': its data_offsets [8, 4] go backwards");
  EXPECT_EQ(entry(R"("dtype":"F32","shape":[2,3],"data_offsets":[0,20])", 20),
            "f: tensor 'a' of shape [2, 3] and dtype F32 takes 24 bytes, its data_offsets [0, 20] span 20");
  EXPECT_EQ(entry(R"("dtype":"F16","shape":[],"data_offsets":[0,4])", 4),
            "f: tensor 'a' of shape [] and dtype F16 takes 2 bytes, its data_offsets [0, 4] span 4");
  EXPECT_EQ(entry(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])"),
            "f: tensor 'a' of shape [4611686018427387904] is larger than 64 bits can count");
  EXPECT_EQ(entry(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
            "f: tensor 'a' of shape [4294967296, 4294967296] is larger than 64 bits can count");
  EXPECT_EQ(entry(R"("dtype":"F32","shape":[3],"data_offsets":[0,12])", 11),
            "f: cut short: tensor 'a' ends at byte 12 of the data, which is 11 bytes long");
}

TEST(Safetensors, DamagedLayouts) {
  const auto two = [](const std::string& a, const std::string& b, std::size_t data_bytes) {
    return error_in(
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + a + R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}",
        data_bytes);
  };
  EXPECT_TRUE(Bytes("{}", "").file().tensors().empty());
  EXPECT_EQ(error_in("{}", 3), "f: bytes 0 to 3 of the data belong to no tensor");
  EXPECT_EQ(two("[0,8]", "[8,12]", 12), "no error");
  EXPECT_EQ(two("[4,12]", "[0,4]", 12), "no error");
  EXPECT_EQ(two("[0,8]", "[7,11]", 11), "f: tensors 'a' and 'b' overlap: one ends at byte 8 of the data, the other begins at 7");
  EXPECT_EQ(two("[0,8]", "[0,4]", 8), "f: tensors 'b' and 'a' overlap: one ends at byte 4 of the data, the other begins at 0");
  EXPECT_EQ(two("[0,8]", "[9,13]", 13), "f: bytes 8 to 9 of the data belong to no tensor");
  EXPECT_EQ(two("[0,8]", "[8,12]", 15), "f: bytes 12 to 15 of the data belong to no tensor");
  EXPECT_EQ(error_in(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
            "f: tensor 'a' appears twice in the header");
  EXPECT_EQ(error_in(R"({"__metadata__":{"k":"1","k":"2"}})"), "f: metadata 'k' appears twice");
  EXPECT_EQ(error_in(R"({"__metadata__":{},"__metadata__":{}})"), "f: '__metadata__' appears twice in the header");
  EXPECT_EQ(error_in(R"({"__metadata__":{"k":1}})"), "f: metadata 'k' is not a text");
  EXPECT_EQ(error_in(R"({"__metadata__":"k"})"), "f: '__metadata__' is not an object of texts");
}

TEST(Safetensors, WrongUse) {
  std::vector<float> values(6 * 3 * 20, 1);
  values[(5 * 3 + 2) * 20 + 17] = std::numeric_limits<float>::quiet_NaN();
  const Bytes bytes(
      R"({"L3.q":{"dtype":"F32","shape":[6,3,20],"data_offsets":[0,1440]},"n":{"dtype":"I32","shape":[1],"data_offsets":[1440,1444]},
    "i":{"dtype":"F16","shape":[2],"data_offsets":[1444,1448]},"d":{"dtype":"F64","shape":[1],"data_offsets":[1448,1456]}})",
      bytes_of(values) + bytes_of<std::int32_t>({1}) + bytes_of<std::uint16_t>({0, 0xfc00}) + bytes_of<double>({1e300}));
  const SafetensorsFile file = bytes.file();
  EXPECT_EQ(error_of([&] { return file.floats("L3.q"); }), "f: tensor 'L3.q' has a NaN at [5, 2, 17]");
  EXPECT_EQ(error_of([&] { return file.floats("i"); }), "f: tensor 'i' has an infinity at [1]");
  EXPECT_EQ(error_of([&] { return file.floats("d"); }), "f: tensor 'd' has an infinity at [0]");
  EXPECT_EQ(error_of([&] { return file.floats("L3.q", {6, 3, 32}); }), "f: tensor 'L3.q' has shape [6, 3, 20], expected [6, 3, 32]");
  EXPECT_EQ(error_of([&] { return file.floats("L3.q", {-1, 60}); }), "f: tensor 'L3.q' has shape [6, 3, 20], expected [any, 60]");
  EXPECT_EQ(error_of([&] { return file.floats("n"); }), "f: tensor 'n' has dtype I32, expected F16, BF16, F32 or F64");
  EXPECT_EQ(error_of([&] { return file.ints("L3.q"); }), "f: tensor 'L3.q' has dtype F32, expected I32 or I64");
  EXPECT_EQ(error_of([&] { return file.raw("L3.k"); }), "f: has no tensor 'L3.k'; the nearest is 'L3.q'");
  EXPECT_EQ(error_of([&] { return file.info("model.embed_tokens.weight"); }), "f: has no tensor 'model.embed_tokens.weight'");
}

TEST(Safetensors, WritingAndReadingChangesNothing) {
  const TempFolder folder;
  const std::string path = folder.file("t.safetensors");
  const std::vector<float> floats{1, -0.1F, 3e38F}, halves{0.1F, 65504};
  const std::vector<std::int32_t> ints{-1, std::numeric_limits<std::int32_t>::max()};
  const std::vector<std::uint8_t> bytes{7, 255, 0};
  const std::map<std::string, std::string> metadata{{"model", "a \"b\"\n"}, {"empty", ""}};
  write_safetensors(path,
                    {{"u", "U8", {3}, bytes.data()},
                     {"h", "F16", {2, 1}, halves.data()},
                     {"f", "F32", {3}, floats.data()},
                     {"i", "I32", {2}, ints.data()},
                     {"none", "F32", {0, 4}, nullptr}},
                    metadata);
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(file.floats("f", {3}), floats);
  EXPECT_EQ(file.floats("h", {2, 1}), (std::vector<float>{half_to_float(float_to_half(0.1F)), 65504}));
  EXPECT_EQ(file.ints("i"), ints);
  EXPECT_TRUE(file.floats("none").empty());
  EXPECT_EQ(std::memcmp(file.raw("u").data(), bytes.data(), 3), 0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.raw("f").data()) % 8, 0U);  // the mapping begins at a page
}

TEST(Safetensors, WhatIsNotWritten) {
  const TempFolder folder;
  const std::string path = folder.file("t.safetensors");
  const std::vector<float> values{1, 70000, std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()};
  const auto write = [&](std::vector<TensorToWrite> tensors, const std::string& to) {
    return error_of([&] { write_safetensors(to, tensors, {}); });
  };
  EXPECT_EQ(write({{"a", "F16", {2}, values.data()}}, path), path + ": tensor 'a' has 70000 at [1], beyond F16's 65504");
  EXPECT_EQ(write({{"a", "F32", {3, 1}, values.data()}}, path), path + ": tensor 'a' has a NaN at [2, 0]");
  EXPECT_EQ(write({{"a", "F32", {1}, values.data() + 3}}, path), path + ": tensor 'a' has an infinity at [0]");
  EXPECT_EQ(write({{"a", "F32", {1}, values.data()}, {"a", "F32", {1}, values.data()}}, path), path + ": two tensors are named 'a'");
  EXPECT_EQ(write({}, path + ".gz"), path + ".gz: safetensors files are not compressed; choose another name");
  const std::string nowhere = folder.file("no/such/t.safetensors");
  EXPECT_EQ(write({}, nowhere), nowhere + ": cannot be written: No such file or directory");
  EXPECT_EQ(error_of([&] { write_safetensors(path, {}, {{"model", "\xff"}}); }), path + ": a name or a metadata text is not UTF-8");
  EXPECT_THROW(write_safetensors(path, {{"a", "F64", {1}, values.data()}}, {}), InternalError);
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace kvlab
