/// troupe doctor: what this machine lacks to run troupe well.
#pragma once

#include <string>

namespace troupe::cli {

struct DoctorOptions {
  std::string folder;
  std::string program;  ///< whose libraries are looked for; empty: of none
  std::string address;  ///< of the head; empty: the one the folder remembers
  bool json = false;    ///< or output == "json"
  std::string output = "table";
};
/// 1 where something does not work at all.
int doctor(const DoctorOptions& options);

}  // namespace troupe::cli
