// How ranks meet: the handshake of every connection, what they say to come by memory, notes and URLs.
#include <array>
#include <cstring>

#include "collectives/flight/analysis.hpp"
#include "collectives/flight/dump.hpp"
#include "collectives/rendezvous/connect/region_share.hpp"
#include "collectives/rendezvous/meeting_file.hpp"
#include "runtime/core/connect/handshake.hpp"
#include "tests/fuzz/reader.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {

using namespace collectives;

namespace {

constexpr std::array<std::byte, 32> kJobKey{std::byte{5}};
constexpr HandshakeIdentity kSelf{.generation = {2, 7}, .world_size = 4, .rank = 1};

/// Changes a message by the next bytes: each is what is flipped in it.
template <class Message>
bool disturb(Message& message, std::span<const std::byte>& bytes) {
  bool disturbed = false;
  for (std::size_t i = 0; const std::byte flipped : take(bytes, message.size())) {
    message[i++] ^= flipped;
    disturbed = disturbed || flipped != std::byte{0};
  }
  return disturbed;
}

/// Text that was accepted decodes to the same again after it was encoded.
template <class Parse>
bool is_kept(std::span<const std::byte> bytes, Parse parse) {
  const auto found = parse(text_of(bytes));
  if (!found) return false;
  const auto text = to_text(*found);
  const auto again = parse(text);
  check(again.ok() && to_text(*again) == text, "what was accepted is the same after it was written");
  return true;
}

}  // namespace

/// A rank that connects to rank 1 of 4, and says of itself what the first bytes say: generation, world size,
/// rank, to whom, whether it encrypts. The next bytes change what the two say to each other. Only a rank of
/// this generation and size, of whose words none was changed, may get through, and then both have its keys.
bool rank_handshake(std::span<const std::byte> bytes) {
  std::array<int, 5> says{2, 4, 3, 1, 0};
  for (std::size_t i = 0; const std::byte flipped : take(bytes, says.size()))
    says[i++] ^= static_cast<int>(flipped);
  SeededRandom random(1);
  const HandshakeIdentity self{.generation = {static_cast<std::uint32_t>(says[0]), 7},
                               .world_size = says[1],
                               .rank = says[2],
                               .encrypts = (says[4] & 1) != 0};
  ConnectorHandshake connector(kJobKey, self, says[3], random);
  AcceptorHandshake acceptor(kJobKey, kSelf, random);
  HelloBytes hello = connector.hello();
  bool disturbed = disturb(hello, bytes);
  auto challenge = acceptor.on_hello(hello);
  check(acceptor.refusal().size() <= sizeof(ChallengeBytes), "a refusal is one message");
  check(challenge.ok() || !acceptor.has_key(), "who was refused at once proved nothing");
  // What does not come from the acceptor may come from anybody.
  ChallengeBytes answer = challenge.ok() ? *challenge : ChallengeBytes{};
  if (!challenge.ok()) std::memcpy(answer.data(), acceptor.refusal().data(), acceptor.refusal().size());
  disturbed = disturb(answer, bytes) || disturbed || !challenge.ok();
  auto proof = connector.on_challenge(answer);
  check(!disturbed || !proof.ok(), "nobody proves himself to a stranger");
  ProofBytes proved = proof.ok() ? *proof : ProofBytes{};
  disturbed = disturb(proved, bytes) || disturbed;
  if (!challenge.ok()) return false;
  auto accept = acceptor.on_proof(proved);
  check(!disturbed || (!accept.ok() && !acceptor.has_key()), "a proof that was changed proves nothing");
  AcceptBytes accepted{};
  if (accept.ok()) {
    check(self.generation == kSelf.generation && self.world_size == kSelf.world_size && says[3] == 1 &&
              self.encrypts == kSelf.encrypts && acceptor.peer() == self.rank,
          "who gets through is of this generation and size");
    accepted = *accept;
  } else {
    std::memcpy(accepted.data(), acceptor.refusal().data(),
                std::min(accepted.size(), acceptor.refusal().size()));
  }
  disturbed = disturb(accepted, bytes) || disturbed;
  const bool done = connector.on_accept(accepted).ok();
  check(done == (accept.ok() && !disturbed), "both get through or the connector does not");
  if (done) {
    for (const char* way : {"up", "down"})
      check(connector.session_key(way) == acceptor.session_key(way), "both have the keys");
  }
  return done;
}

bool region_greeting(std::span<const std::byte> bytes) {
  const std::string secret = "0123456789abcdef0123456789abcdef";
  const int rank = rank_of_greeting(bytes, secret, {1, 2, 5});
  if (rank < 0) return false;
  const auto again = collectives::region_greeting(rank, secret);
  check(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()), "a rank has one greeting");
  return true;
}

bool meeting_note(std::span<const std::byte> bytes) {
  return is_kept(bytes, parse_meeting_note);
}

/// A URL, then variables and their values, in lines.
bool rendezvous_url(std::span<const std::byte> bytes) {
  std::string text(text_of(bytes));
  std::vector<const char*> lines{text.c_str()};
  for (char& c : text) {
    if (c != '\n') continue;
    c = '\0';
    lines.push_back(&c + 1);
  }
  const auto variable = [&](const char* name) -> const char* {
    for (std::size_t i = 1; i + 1 < lines.size(); i += 2) {
      if (std::strcmp(lines[i], name) == 0) return lines[i + 1];
    }
    return nullptr;
  };
  const auto place = read_rendezvous(lines.front(), -1, -1, variable);
  if (!place) return false;
  check(place->rank >= 0 && place->rank < place->size, "a rank is one of the job's");
  check(place->path.empty() ? place->at.port != 0 : place->path.front() == '/', "there is a place to meet");
  return true;
}

bool flight_dump(std::span<const std::byte> bytes) {
  const auto parse = [](std::string_view text) { return flight::parse_dump(text, "fuzzed"); };
  const auto dump = parse(text_of(bytes));
  if (!dump) return false;
  const std::string text = encode(*dump);
  decoded();  // a dump is written with room for more
  const auto again = parse(text);
  check(again.ok() && encode(*again) == text, "what was accepted is the same after it was written");
  for (const auto& report : flight::analyse({*dump})) check(!to_text(report).empty(), "a report has text");
  return true;
}

}  // namespace troupe::fuzz
