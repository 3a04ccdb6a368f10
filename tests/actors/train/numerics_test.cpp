#include "actors/train/engine/numerics.hpp"

#include <dlfcn.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <filesystem>

namespace troupe::train {
namespace {

TEST_CASE("the fingerprint names release, kernels, instruction set and threads") {
  set_up_numerics();
  const std::string one = numerics_fingerprint();
  CAPTURE(one);
  CHECK(one.find(std::string("libtorch ") + TORCH_VERSION) == 0);
  CHECK(one.find("CPU capability") != std::string::npos);
  CHECK(one.find("threads 1") != std::string::npos);
  CHECK(at::get_num_interop_threads() == 1);
  CHECK(threads_in(one) == 1);
  at::set_num_threads(2);
  CHECK(numerics_fingerprint() != one);
  CHECK(threads_in(numerics_fingerprint()) == 2);
  CHECK_FALSE(threads_in("exact"));
  at::set_num_threads(1);
  CHECK(numerics_fingerprint() == one);
}

// Was: deterministic algorithms were forced with exact = false, too, so a job with an operation that has no
// deterministic kernel could not run at all.
TEST_CASE("a job that need not be exact may use operations without a deterministic kernel") {
  const auto puts = [] { torch::zeros({4}).put_(torch::tensor({0, 1}), torch::ones({2})); };
  at::globalContext().setDeterministicAlgorithms(false, false);  // as a process begins
  set_up_numerics(1, torch::kCPU, false);
  CHECK_NOTHROW(puts());
  CHECK(at::get_num_threads() == 1);
  set_up_numerics();
  CHECK_THROWS_WITH(puts(), Catch::Contains("deterministic"));
}

// LibTorch's libraries export copies of functions of the C++ library. With those of 2.11 every program for
// CUDA crashed at its end, in remove_all.
TEST_CASE("functions of the C++ library are its own, and not the copies in LibTorch") {
  using RemoveAll = std::uintmax_t (*)(const std::filesystem::path&, std::error_code&);
  Dl_info found{};
  REQUIRE(::dladdr(reinterpret_cast<void*>(static_cast<RemoveAll>(&std::filesystem::remove_all)), &found) !=
          0);
  CHECK_THAT(found.dli_fname, Catch::Contains("libstdc++"));
}

}  // namespace
}  // namespace troupe::train
