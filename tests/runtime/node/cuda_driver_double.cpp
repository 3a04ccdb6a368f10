/// A double of CUDA's driver, as far as find_gpus() asks it. TROUPE_TEST_GPUS says what it has: a letter a
/// device, 'g' for a whole one and 'm' for an instance of a divided one; "broken": it does not start; "none":
/// it has no device.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

const char* devices() {
  const char* text = std::getenv("TROUPE_TEST_GPUS");
  return text == nullptr ? "" : text;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  if (std::strcmp(devices(), "broken") == 0) return 803;  // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
  return std::strcmp(devices(), "none") == 0 ? 100 : 0;
}
int cuDeviceGetCount(int* count) {
  if (std::strcmp(devices(), "none") == 0) return 3;
  *count = static_cast<int>(std::strlen(devices()));
  return 0;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  for (int i = 0; i < 16; ++i) uuid[i] = static_cast<unsigned char>(16 * device + i);
  return 0;
}
int cuDeviceGetName(char* name, int size, int device) {
  std::snprintf(name, static_cast<std::size_t>(size), "%s",
                devices()[device] == 'm' ? "NVIDIA H200 MIG 1g.18gb" : "NVIDIA H200");
  return 0;
}

}  // extern "C"
