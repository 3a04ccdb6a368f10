// Tensors as JSON and as bytes.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "actors/serve/http/raw_tensor.hpp"

using namespace troupe;
using namespace troupe::http;
using data::DType;
using data::Shape;
using data::Tensor;

namespace {

const SampleSpec kMatrix{DType::kFloat32, {2, 2}};

Result<Tensor> decode_tensor(std::string json, const SampleSpec& sample = kMatrix) {
  return decode_json(json, sample, 4);
}
std::string why_wrong(const std::string& json, const SampleSpec& sample = kMatrix) {
  const auto decoded = decode_tensor(json, sample);
  return decoded ? "it was accepted" : decoded.error().why;
}
template <class T>
std::vector<T> values(const Tensor& tensor) {
  const auto all = tensor.values<T>();
  return {all.begin(), all.end()};
}

}  // namespace

TEST_CASE("samples from JSON") {
  const auto decoded = decode_tensor(" {\"in\\u0070uts\": [[[1, -2.5], [3e2, 4]], [[0,0],[0,1e-46]]]} ");
  REQUIRE(decoded);
  CHECK(decoded->shape() == Shape{2, 2, 2});
  CHECK(values<float>(*decoded) == std::vector<float>{1, -2.5, 300, 4, 0, 0, 0, 0});
  const auto scalars = decode_tensor("{\"inputs\":[1,-9223372036854775808]}", {DType::kInt64, {}});
  REQUIRE(scalars);
  CHECK(scalars->shape() == Shape{2});
  CHECK(values<std::int64_t>(*scalars) ==
        std::vector<std::int64_t>{1, std::numeric_limits<std::int64_t>::min()});
  CHECK(values<std::uint8_t>(*decode_tensor("{\"inputs\":[[255,0]]}", {DType::kUInt8, {2}})) ==
        std::vector<std::uint8_t>{255, 0});
  CHECK(decode_tensor("{\"inputs\":[true,false]}", {DType::kBool, {}})->values<bool>()[0]);
  CHECK(decode_tensor("{\"inputs\":[0.1]}", {DType::kFloat64, {}})->values<double>()[0] == 0.1);
}

TEST_CASE("JSON that is not what is served says where and what is expected") {
  CHECK(why_wrong("{\"inputs\": [[[1, 2], [3]]]}") == "inputs[0][1] has 1 elements, where 2 are expected");
  CHECK(why_wrong("{\"inputs\": [[[1,2],[3,4]], [[1,2],[3,4,5]]]}") ==
        "inputs[1][1] has more than the 2 elements expected");
  CHECK(why_wrong("{\"inputs\": [[1, 2], [3, 4]]}") ==
        "inputs[0][0] is a number, where a list of 2 is expected");
  CHECK(why_wrong("{\"inputs\": [[[1, 2], [3, [4]]]]}") ==
        "inputs[0][1][1] is a list, where one float32 is expected");
  CHECK(why_wrong("{\"inputs\": [[[1, 2], [3, null]]]}") ==
        "inputs[0][1][1] is null, where one float32 is expected");
  CHECK(why_wrong("{\"inputs\": [[[1, 2], [3, \"4\"]]]}") ==
        "inputs[0][1][1] is a string, where one float32 is expected");
  CHECK(why_wrong("{\"inputs\": [[[1, 2], [3, NaN]]]}")
            .starts_with("inputs[0][1][1] is no value of JSON (as NaN"));
  CHECK(why_wrong("{\"inputs\": [[[1, 2], [3, -Infinity]]]}").starts_with("inputs[0][1][1] is "));
  CHECK(why_wrong("{\"inputs\": [[[1, 2], [3, 1e39]]]}") == "inputs[0][1][1] does not fit into float32");
  CHECK(why_wrong("{\"inputs\": [[[1, 2], [3, 1e999]]]}") == "inputs[0][1][1] does not fit into float32");
  // Was: "is a number, where one float32 is expected".
  CHECK(why_wrong("{\"inputs\": [[[1, 2], [3, 01 ]]]}") ==
        "inputs[0][1][1] is \"01\", which is no number of JSON");
  CHECK(why_wrong("{\"inputs\": []}") == "inputs is empty: at least one sample is expected");
  CHECK(why_wrong("{\"inputs\": 3}").starts_with("inputs is a number"));
  CHECK(why_wrong("{}") == "it has no inputs");
  CHECK(why_wrong("{\"instances\": []}") == "it has the unknown key \"instances\"");
  CHECK(why_wrong("{\"inputs\": [[[1,2],[3,4]]], \"inputs\": []}") == "it has inputs twice");
  CHECK(why_wrong("[[[1,2],[3,4]]]") == "it is no object");
  CHECK(why_wrong("{\"inputs\": [[[1,2],[3,4]]]} {}") == "something follows the object");
  // Was: "JSON document ended early in the middle of an object or array."
  for (const char* text : {"{\"inputs\": [[[1,2],[3,4]]]} x", "{\"inputs\": [[[1,2],[3,4]]"})
    CHECK(why_wrong(text) ==
          "it is not JSON: it was cut off before the object's end, or something follows the object");
  CHECK(why_wrong("{\"inputs\":[1,1,1,1,1]}", {DType::kFloat32, {}}) == "inputs has more than 4 samples");
  CHECK(why_wrong("{\"inputs\":[1.5]}", {DType::kInt64, {}})
            .starts_with("inputs[0] is a number, where one int64"));
  CHECK(why_wrong("{\"inputs\":[9223372036854775808]}", {DType::kInt64, {}}).starts_with("inputs[0] is "));
  CHECK(why_wrong("{\"inputs\":[256]}", {DType::kUInt8, {}}) == "inputs[0] does not fit into uint8");
  CHECK(why_wrong("{\"inputs\":[1]}", {DType::kBool, {}}).starts_with("inputs[0] is "));
  CHECK(why_wrong("{\"inputs\":[1]}", {DType::kFloat16, {}}) == "its samples are float16");
  for (const char* text :
       {"", " ", "{", "{\"inputs\"", "{\"inputs\": [[[1,2],[3,4]]", "{\"inputs\": [[[1,2],[3,4]],]}",
        "{\"inputs\": [[[1,,2],[3,4]]]}", "{\"inputs\": [[[01,2],[3,4]]]}", "{\"inputs\": [[[1 2],[3,4]]]}",
        "{\"inputs\": [[[1,2],[3,4]]]]", "{'inputs': []}", "{\"inputs\": [[[+1,2],[3,4]]]}",
        "{\"inputs\": [[[1,2],[3,.4]]]}", "{\"inputs\": [[[0x1,2],[3,4]]]}", "\xef\xbb\xbf{}",
        "{\"\xff\": 1}"}) {
    INFO(text);
    CHECK(!decode_tensor(text));
  }
  const auto error = decode_tensor("{}").error();
  CHECK(error.message() ==
        "the body is not what is served here: it has no inputs (send {\"inputs\": [sample, ...]}, each "
        "sample nested lists of shape [2, 2] of float32)");
}

TEST_CASE("JSON of any depth and length takes no stack") {
  const std::string deep(1'000'000, '[');
  CHECK(!decode_tensor(deep));
  CHECK(!decode_tensor("{\"inputs\": " + deep));
  CHECK(!decode_tensor("{\"inputs\": " + deep + std::string(1'000'000, ']') + "}"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"inputs\":";
  CHECK(!decode_tensor(objects));
}

TEST_CASE("answers as JSON read back as the same bits") {
  const std::vector<float> all{0.1F, -0.0F, 1e-45F, 3.4028235e38F, 16777216, 1.0F / 3};
  const auto json = encode_json(Tensor(all, {3, 2}));
  REQUIRE(json);
  CHECK(*json == "{\"outputs\": [[0.1,-0],[1e-45,3.4028235e+38],[16777216,0.33333334]]}\n");
  std::string again = "{\"inputs" + json->substr(json->find("\": "));
  const auto back = decode_tensor(again, {DType::kFloat32, {2}});
  REQUIRE(back);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(back->values<float>()[i] == all[i]);
    CHECK(std::signbit(back->values<float>()[i]) == std::signbit(all[i]));
  }
  CHECK(*encode_json(Tensor(std::vector<std::int64_t>{-1, 2})) == "{\"outputs\": [-1,2]}\n");
  CHECK(*encode_json(Tensor(std::vector<float>{}, {2, 0})) == "{\"outputs\": [[],[]]}\n");

  const auto nan = encode_json(Tensor(std::vector<float>{1, NAN}));
  REQUIRE(!nan);
  CHECK(nan.error().why == "element 1 of the output [2] is NaN");
  CHECK(!encode_json(Tensor(std::vector<double>{INFINITY})));
  CHECK(encode_outputs(Tensor(std::vector<float>{NAN}), false).status == 500);
}

TEST_CASE("raw tensors, both ways") {
  const Tensor sent(std::vector<float>{1, 2, 3, NAN, 5, 6, 7, 8}, {2, 2, 2});
  const Response response = encode_outputs(sent, true);
  CHECK(response.content_type == "application/octet-stream");
  Request request;
  for (const auto& [name, value] : response.headers) request.headers.add(name, value);
  request.headers.add("Content-Type", "application/octet-stream; x=y");
  request.body = response.body;
  CHECK(wants_raw(request));
  const auto back = decode_inputs(request, kMatrix, 4);
  REQUIRE(back);
  CHECK(back->shape() == Shape{2, 2, 2});
  CHECK(std::equal(back->bytes().begin(), back->bytes().end(), sent.bytes().begin(), sent.bytes().end()));

  const auto why = [](const char* dtype, const char* shape, std::size_t bytes, SampleSpec sample = kMatrix) {
    Headers headers;
    if (*dtype != 0) headers.add("Tensor-Dtype", dtype);
    if (*shape != 0) headers.add("tensor-shape", shape);
    const auto decoded = decode_raw(headers, std::string(bytes, '\2'), sample, 4);
    return decoded ? "it was accepted" : decoded.error().why;
  };
  CHECK(why("float32", "1,2,2", 16) == "it was accepted");
  CHECK(why("", "1,2,2", 16) == "it has no Tensor-Dtype");
  CHECK(why("float64", "1,2,2", 32) == "its Tensor-Dtype is not float32");
  CHECK(why("float32", "", 16) == "it has no Tensor-Shape");
  CHECK(why("float32", "1,2,3", 24) == "its Tensor-Shape is [1, 2, 3]");
  CHECK(why("float32", "2,2", 16) == "its Tensor-Shape is [2, 2]");
  CHECK(why("float32", "1,2,2", 15) == "its body has 15 bytes, where 1 times 16 are expected");
  CHECK(why("float32", "0,2,2", 0) == "it has no sample");
  CHECK(why("float32", "5,2,2", 80) == "it has more than 4 samples");
  CHECK(why("float32", "4611686018427387905,2,2", 16).starts_with("it has more than"));
  CHECK(why("bool", "2", 2, {DType::kBool, {}}) == "a byte of a bool is neither 0 nor 1");
  for (const char* shape :
       {"-1,2,2", "1,2,", ",", "1;2;2", "1 2 2", "99999999999999999999", "1,1,1,1,1,1,1,1,1,1,1", "[1,2,2]"})
    CHECK(why("float32", shape, 16).starts_with("its Tensor-Shape is no list"));

  for (const char* field : {"Tensor-Dtype", "Tensor-Shape"}) {  // which of two would be meant?
    Headers twice;
    twice.add("Tensor-Dtype", "float32");
    twice.add("Tensor-Shape", "1,2,2");
    twice.add(field, twice.find(field).value());
    const auto decoded = decode_raw(twice, std::string(16, '\2'), kMatrix, 4);
    REQUIRE(!decoded);
    CHECK(decoded.error().why == "it has several " + std::string(field) + " fields");
  }

  Request asks;
  asks.headers.add("Accept", "text/html, Application/Octet-Stream;q=0.5");
  CHECK(wants_raw(asks));
  CHECK(!wants_raw(Request{}));
}
