// KServe's protocol v2, as its pages and Triton's client write it.
#include "actors/serve/http/kserve.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <vector>

using namespace troupe;
using namespace troupe::http;
using data::DType;
using data::Shape;
using data::Tensor;
using What = KserveRoute::What;

namespace {

const SampleSpec kPair{DType::kFloat32, {2}};

/// `json_bytes`: of the header field; -1: there is none.
Result<KserveRequest> decode(const std::string& body, const SampleSpec& sample = kPair, int json_bytes = -1) {
  Request request{.body = body};
  if (json_bytes >= 0) request.headers.add("inference-header-content-length", std::to_string(json_bytes));
  return decode_kserve(request, sample, 4);
}
std::string why_not(const std::string& body, const SampleSpec& sample = kPair, int json_bytes = -1) {
  const auto decoded = decode(body, sample, json_bytes);
  return decoded ? "it was accepted" : decoded.error().why;
}
/// A request with one input that has these fields.
std::string input(const std::string& fields, const std::string& more = "") {
  return R"({"inputs":[{"name":"input",)" + fields + "}]" + more + "}";
}
std::vector<float> floats(const Tensor& tensor) {
  const auto all = tensor.values<float>();
  return {all.begin(), all.end()};
}

}  // namespace

TEST_CASE("paths of the protocol, with and without a slash at the end") {
  const auto is = [](std::string_view path, What what, const std::string& model = "",
                     const std::string& version = "") {
    const auto route = parse_kserve_path(path);
    return route && route->what == what && route->model == model && route->version == version;
  };
  CHECK(is("/v2", What::kServer));
  CHECK(is("/v2/", What::kServer));
  CHECK(is("/v2/health/live", What::kLive));
  CHECK(is("/v2/health/ready/", What::kReady));
  CHECK(is("/v2/models/a-b", What::kModel, "a-b"));
  CHECK(is("/v2/models/a%2Fb/ready", What::kModelReady, "a/b"));
  CHECK(is("/v2/models/a/versions/3", What::kModel, "a", "3"));
  CHECK(is("/v2/models/a/versions/3/ready", What::kModelReady, "a", "3"));
  CHECK(is("/v2/models/a/versions/3/infer", What::kInfer, "a", "3"));
  CHECK(is("/v2/models/versions/infer", What::kInfer, "versions"));
  for (const char* path :
       {"", "/", "/v1/a", "/v22", "/v2//health/live", "/v2/health", "/v2/health/dead", "/v2/models",
        "/v2/models/a/versions", "/v2/models/a/stats", "/v2/models/a/infer/more", "/v2/models/%zz",
        "/v2/models/a/versions/1/2/3/4/5/6/7/8/9/10"}) {
    INFO(path);
    CHECK_FALSE(parse_kserve_path(path));
  }
}

TEST_CASE("the request of the protocol's page, and its answer") {
  const auto decoded = decode(R"({
      "id" : "42",
      "inputs" : [{"name" : "input", "shape" : [2, 2], "datatype" : "FP32", "data" : [1, 2.5, -3e2, 4]}],
      "outputs" : [{"name" : "output"}]
    })");
  REQUIRE(decoded);
  CHECK(decoded->id == "42");
  CHECK(decoded->inputs.shape() == Shape{2, 2});
  CHECK(floats(decoded->inputs) == std::vector<float>{1, 2.5, -300, 4});
  CHECK_FALSE(decoded->wants_binary);
  CHECK_FALSE(decoded->timeout);
  const auto nested = decode(input(R"("shape":[2,2],"datatype":"FP32","data":[[1,2],[3,4]])"));
  REQUIRE(nested);
  CHECK(floats(nested->inputs) == std::vector<float>{1, 2, 3, 4});

  const Tensor outputs(std::vector<float>{0.1F, -2, 3e10F}, {3, 1});
  CHECK(encode_kserve({"digits", "7"}, "42", false, outputs).body ==
        R"({"model_name":"digits","model_version":"7","id":"42","outputs":[{"name":"output","shape":[3, 1],)"
        R"("datatype":"FP32","data":[0.1,-2,3e+10]}]})");
  const Response infinite =
      encode_kserve({"digits", "7"}, "", false, Tensor(std::vector<float>{INFINITY}, {1}));
  CHECK(infinite.status == 500);
  CHECK(infinite.body.find("binary_data") != std::string::npos);
}

TEST_CASE("tensors as bytes behind the JSON, as Triton's client sends and reads them") {
  const std::string json =
      R"({"inputs":[{"name":"input","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}],)"
      R"("parameters":{"binary_data_output":true}})";
  const float values[] = {1.5F, NAN};
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), values, 8);
  const int length = static_cast<int>(json.size());
  const auto decoded = decode(json + bytes, kPair, length);
  REQUIRE(decoded);
  CHECK(decoded->wants_binary);
  CHECK(floats(decoded->inputs)[0] == 1.5F);
  CHECK(std::isnan(floats(decoded->inputs)[1]));

  const Response response = encode_kserve({"digits", "1"}, "", true, decoded->inputs);
  CHECK(response.content_type == "application/octet-stream");
  REQUIRE(response.headers.size() == 1);
  CHECK(response.headers[0].first == "Inference-Header-Content-Length");
  const std::string head =
      R"({"model_name":"digits","model_version":"1","outputs":[{"name":"output","shape":[1, 2],)"
      R"("datatype":"FP32","parameters":{"binary_data_size":8}}]})";
  CHECK(response.headers[0].second == std::to_string(head.size()));
  CHECK(response.body == head + bytes);

  CHECK(why_not(json + bytes).starts_with("it is not JSON"));
  CHECK(why_not(json + bytes, kPair, length + 9) ==
        "Inference-Header-Content-Length is not a length within the body");
  CHECK(why_not(json + bytes + "x", kPair, length) ==
        "9 bytes follow the JSON, where binary_data_size says 8");
  CHECK(why_not(json + bytes, {DType::kFloat32, {3}}, length) == "its input's shape is [1, 2]");
  CHECK(why_not(input(R"("shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":4}})") + "}", kPair,
                5)
            .starts_with("it is not JSON"));
  const std::string small = input(R"("shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":4})");
  CHECK(why_not(small + "abcd", kPair, static_cast<int>(small.size())) ==
        "binary_data_size is 4, where 2 times 4 are expected");
  const std::string both = input(R"("shape":[1,2],"datatype":"FP32","data":[1,2])");
  CHECK(why_not(both + "abcd", kPair, static_cast<int>(both.size())) ==
        "bytes follow it that no input's binary_data_size tells of");
  const std::string truth = input(R"("shape":[1],"datatype":"BOOL","parameters":{"binary_data_size":1})");
  CHECK(why_not(truth + "\x02", {DType::kBool, {}}, static_cast<int>(truth.size())) ==
        "a byte of a BOOL is neither 0 nor 1");
  const std::string half = input(R"("shape":[1],"datatype":"FP16","parameters":{"binary_data_size":2})");
  CHECK(decode(half + "ab", {DType::kFloat16, {}}, static_cast<int>(half.size())));
}

TEST_CASE("what is said beside the tensors") {
  const std::string one = R"("shape":[1,2],"datatype":"FP32","data":[1,2])";
  const auto ask = [&](const std::string& more) { return decode(input(one, more)); };
  CHECK(ask(R"(,"outputs":[{"name":"output","parameters":{"binary_data":true}}])")->wants_binary);
  CHECK_FALSE(ask(R"(,"outputs":[{"name":"output","parameters":{"binary_data":false}}],)"
                  R"("parameters":{"binary_data_output":true})")
                  ->wants_binary);
  CHECK(ask(R"(,"parameters":{"timeout":1500})")->timeout == std::chrono::microseconds(1500));
  CHECK(ask(R"(,"parameters":{"timeout":18446744073709551615})")->timeout > std::chrono::hours(8000));
  CHECK(ask(R"(,"parameters":{"priority":1,"mine":"x"})"));  // those of others mean nothing here
  for (const auto& [more, why] : std::vector<std::pair<std::string, std::string>>{
           {R"(,"parameters":{"sequence_id":1})", "nets here have no state: there are no sequences"},
           {R"(,"outputs":[{"name":"scores"}])", "an output is asked for whose name is not \"output\""},
           {R"(,"outputs":[{"name":"output","parameters":{"classification":3}}])",
            "there are no classifications here"},
           {R"(,"outputs":[3])", "an output is asked for whose name is not \"output\""},
           {R"(,"id":7)", "id is no string"},
           {R"(,"batch":7)", "it has the unknown key \"batch\""},
           {R"(,"inputs":[])", "it has inputs twice"},
           {R"(,"id":"a","id":"b")", "it has id twice"},
           {R"(,"outputs":[],"outputs":[{"name":"output"}])", "it has outputs twice"}}) {
    CHECK(why_not(input(one, more)) == why);
  }
}

TEST_CASE("what is not the model's input says so") {
  const auto why = [](const std::string& fields, const SampleSpec& sample = kPair) {
    return why_not(input(fields), sample);
  };
  CHECK(why_not("{}") == "it has no inputs");
  CHECK(why_not("[]") == "it is no object");
  CHECK(why_not(R"({"inputs":{}})") == "inputs is no list of tensors");
  CHECK(why_not(R"({"inputs":[]})") == "it has another number of inputs than one");
  CHECK(why_not(R"({"inputs":[1]})") == "its input's name is not \"input\"");
  CHECK(why_not(R"({"inputs":[{"name":"x"}]})") == "its input's name is not \"input\"");
  CHECK(why(R"("shape":[1,2],"data":[1,2])") == "its input has no datatype");
  CHECK(why(R"("datatype":"FP64","shape":[1,2],"data":[1,2])") == "its input's datatype is \"FP64\"");
  CHECK(why(R"("datatype":"FP32","data":[1,2])") == "its input has no shape");
  CHECK(why(R"("datatype":"FP32","shape":[2],"data":[1,2])") == "its input's shape is [2]");
  CHECK(why(R"("datatype":"FP32","shape":[],"data":[])") == "its input's shape is []");
  CHECK(why(R"("datatype":"FP32","shape":[1,-2],"data":[])") ==
        "its input's shape is not that of samples here");
  CHECK(why(R"("datatype":"FP32","shape":[0,2],"data":[])") == "its input has no sample");
  CHECK(why(R"("datatype":"FP32","shape":[5,2],"data":[])") == "its input has more than 4 samples");
  CHECK(why(R"("datatype":"FP32","shape":[1,2])").starts_with("its input has not one of data and"));
  // The example of the protocol's own page says shape [3] and sends one value.
  CHECK(why(R"("datatype":"FP32","shape":[3],"data":[66])", {DType::kFloat32, {}}) ==
        "data has 1 elements, where 3 are expected");
  CHECK(why(R"("datatype":"FP32","shape":[1,2],"data":[1,2,3])") ==
        "data has more elements than the 2 expected");
  CHECK(why(R"("datatype":"FP32","shape":[1,2],"data":[1,null])") == "element 1 of data is no FP32");
  CHECK(why(R"("datatype":"FP32","shape":[1,2],"data":[1,1e39])") == "element 1 of data is no FP32");
  CHECK(why(R"("datatype":"FP32","shape":[1,2],"data":[[1],[2]])").starts_with("data has 1 elements"));
  CHECK(why(R"("datatype":"FP32","shape":[2,2],"data":[[1,2]])").starts_with("data is not lists in lists"));
  CHECK(why(R"("datatype":"FP32","shape":[2,2],"data":[[1,2],3])").starts_with("data is not lists in lists"));
  CHECK(why(R"("datatype":"INT8","shape":[1],"data":[128])", {DType::kInt8, {}}) ==
        "element 0 of data is no INT8");
  CHECK(why(R"("datatype":"BOOL","shape":[1],"data":[1])", {DType::kBool, {}}) ==
        "element 0 of data is no BOOL");
  CHECK(why(R"("datatype":"FP16","shape":[1],"data":[1])", {DType::kFloat16, {}})
            .starts_with("its datatype has no JSON"));
  CHECK(why(R"("datatype":"FP32","shape":[1,2],"parameters":{"shared_memory_region":"x"})") ==
        "tensors in shared memory are not read here");
  const std::string deep(1'000'000, '[');
  CHECK_FALSE(decode(deep));
  CHECK_FALSE(decode(R"({"inputs":)" + deep + std::string(1'000'000, ']') + "}"));
  CHECK(decode("{}").error().message() ==
        "the body is not what is served here: it has no inputs (send {\"inputs\": [{\"name\": \"input\", "
        "\"shape\": [ROWS, 2], \"datatype\": \"FP32\", \"data\": [...]}]}, or the elements as bytes behind "
        "it)");
}

TEST_CASE("metadata names one input and one output, with any number of samples") {
  CHECK(kserve_metadata({"digits", "3"}, {DType::kFloat32, {1, 28, 28}}, {DType::kInt64, {}}).body ==
        R"({"name":"digits","versions":["3"],"platform":"troupe_libtorch",)"
        R"("inputs":[{"name":"input","datatype":"FP32","shape":[-1,1,28,28]}],)"
        R"("outputs":[{"name":"output","datatype":"INT64","shape":[-1]}]})");
  CHECK(kserve_datatype(DType::kBFloat16) == "BF16");
  CHECK(kserve_datatype(DType::kComplex64) == "");
}
