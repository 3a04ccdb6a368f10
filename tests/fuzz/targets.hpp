/// Decoders of bytes from outside, each as a function that takes any bytes: fuzzed by libFuzzer
/// (libfuzzer.cpp) and by our own small fuzzer (driver.cpp). README.md tells how.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace troupe::fuzz {

/// Decodes `bytes` and checks what must hold of the outcome, whatever they are. True: they were accepted.
using FuzzOne = bool (*)(std::span<const std::byte> bytes);

struct Target {
  std::string_view name;  ///< of its corpus, too: corpus/NAME/
  FuzzOne run;
  /// It may hold so much whatever its input, for errors and tables; what is above must be justified by the
  /// input.
  std::size_t fixed_bytes = std::size_t{16} << 10;
};

// One a decoder, in the file of its name.
bool frame_header(std::span<const std::byte> bytes);
bool control_message(std::span<const std::byte> bytes);
bool call_arguments(std::span<const std::byte> bytes);
bool store_record(std::span<const std::byte> bytes);
bool log_frames(std::span<const std::byte> bytes);
bool job_package(std::span<const std::byte> bytes);
bool link_packets(std::span<const std::byte> bytes);
bool link_faults(std::span<const std::byte> bytes);
bool ring_memory(std::span<const std::byte> bytes);
bool node_machine(std::span<const std::byte> bytes);
bool batch_layout(std::span<const std::byte> bytes);
bool endpoint(std::span<const std::byte> bytes);
bool public_key(std::span<const std::byte> bytes);
bool join_token(std::span<const std::byte> bytes);
bool key_bundle(std::span<const std::byte> bytes);
bool key_folder(std::span<const std::byte> bytes);
bool cluster_folder(std::span<const std::byte> bytes);
bool admission_register(std::span<const std::byte> bytes);
bool store_request(std::span<const std::byte> bytes);
bool store_response(std::span<const std::byte> bytes);
bool store_entry(std::span<const std::byte> bytes);
bool store_gathered(std::span<const std::byte> bytes);
bool sealed_stream(std::span<const std::byte> bytes);
bool rank_frames(std::span<const std::byte> bytes);
bool rank_handshake(std::span<const std::byte> bytes);
bool region_greeting(std::span<const std::byte> bytes);
bool meeting_note(std::span<const std::byte> bytes);
bool rendezvous_url(std::span<const std::byte> bytes);
bool rank_frame_header(std::span<const std::byte> bytes);
bool flight_dump(std::span<const std::byte> bytes);
bool error_file(std::span<const std::byte> bytes);
bool http_request(std::span<const std::byte> bytes);
bool tensor_json(std::span<const std::byte> bytes);
bool raw_tensor(std::span<const std::byte> bytes);
bool kserve_infer(std::span<const std::byte> bytes);
bool serving_question(std::span<const std::byte> bytes);
bool serving_status(std::span<const std::byte> bytes);
bool serving_file(std::span<const std::byte> bytes);
bool training_curve(std::span<const std::byte> bytes);

inline constexpr Target kTargets[] = {
    {"frame_header", frame_header},
    {"control_message", control_message},
    {"call_arguments", call_arguments},
    {"store_record", store_record},
    {"log_frames", log_frames},
    {"job_package", job_package},
    {"link_packets", link_packets, (std::size_t{1} << 20) + (16 << 10)},
    {"link_faults", link_faults, (std::size_t{1} << 20) + (64 << 10)},
    {"ring_memory", ring_memory},
    {"node_machine", node_machine, std::size_t{1} << 20},
    {"batch_layout", batch_layout},
    {"endpoint", endpoint},
    {"public_key", public_key},
    {"join_token", join_token},
    {"key_bundle", key_bundle},
    {"key_folder", key_folder},
    {"cluster_folder", cluster_folder},
    {"admission_register", admission_register},
    {"store_request", store_request},
    {"store_response", store_response},
    {"store_entry", store_entry, std::size_t{64} << 10},
    {"store_gathered", store_gathered},
    {"sealed_stream", sealed_stream},
    {"rank_frames", rank_frames, std::size_t{128} << 10},
    {"rank_handshake", rank_handshake},
    {"region_greeting", region_greeting},
    {"meeting_note", meeting_note},
    {"rendezvous_url", rendezvous_url},
    {"rank_frame_header", rank_frame_header},
    {"flight_dump", flight_dump},
    {"error_file", error_file},
    {"http_request", http_request},
    {"tensor_json", tensor_json, std::size_t{64} << 10},
    {"raw_tensor", raw_tensor},
    {"kserve_infer", kserve_infer, std::size_t{64} << 10},
    {"serving_question", serving_question, std::size_t{1} << 20},
    {"serving_status", serving_status, std::size_t{1} << 20},
    {"serving_file", serving_file, std::size_t{4} << 20},
    {"training_curve", training_curve, std::size_t{1} << 20},
};

/// The bytes as text.
inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Said by a target that does more than decode: what is allocated from here on is its own, and not counted.
void decoded();
/// Called by decoded(), if set.
extern void (*on_decoded)();

/// What a decoder accepted and an encoder wrote again must decode to the same: ends the process if it does
/// not.
void check(bool holds, const char* what);

}  // namespace troupe::fuzz
