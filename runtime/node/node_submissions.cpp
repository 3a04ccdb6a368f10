/// What the node does for submitted jobs: which programs run here, who may come in by their sockets, and what
/// their workers need.
#include "runtime/node/node_machine.hpp"

namespace troupe::node {

void NodeMachine::handle(const JobFilesFound& e) {
  submissions_.found(e);
}
void NodeMachine::handle(const JobUnpacked& e) {
  if (JobLibraries::is_meant(e)) return libraries_done(libraries_.unpacked(e, now_, out_));
  submissions_.unpacked(e, now_, out_);
}
void NodeMachine::handle(const HeadGavePart& e) {
  submissions_.part(e, now_, out_);
  libraries_done(libraries_.part(e, now_, out_));
}
void NodeMachine::handle(const JobPartTaken& e) {
  submissions_.part_taken(e, now_, out_);
  libraries_done(libraries_.taken(e, now_, out_));
}
void NodeMachine::package_done(const PackageFetches::Done& done) {
  if (leaving_) return;
  actors_.package_done(done, now_, out_);
  leases_.package_done(done, now_, out_);
}
void NodeMachine::libraries_done(const std::optional<JobLibraries::Done>& done) {
  if (!done) return;
  if (!submissions_.names(done->package)) out_.push_back(DropJobPackage{done->package});  // it is unpacked
  package_done({"", done->error, done->package});
}
void NodeMachine::handle(const ProgramStarted& e) {
  submissions_.program_started(e, now_, out_);
}
void NodeMachine::handle(const ProgramNotStarted& e) {
  submissions_.program_not_started(e, out_);
  if (leaving_) finish_leaving();
}
void NodeMachine::handle(const ProgramEnded& e) {
  submissions_.program_ended(e, out_);
  if (leaving_) finish_leaving();
}
/// A process comes in through the socket of its submission: who can reach that is of the submission's program
/// or of its user, who might as well have started it.
void NodeMachine::handle(const DriverKnocked& e) {
  if (e.hello.version != wire::kProtocolVersion) {
    out_.push_back(DropKnock{e.connection, "it speaks version " + std::to_string(e.hello.version) +
                                               ", and its node " + std::to_string(wire::kProtocolVersion)});
  } else if (leaving_ || !submissions_.runs(e.id)) {
    out_.push_back(DropKnock{e.connection, "its job does not run here any more"});
  } else {
    packages_.brought(e.hello.package, out_);
    locals_.adopt_driver_of(e, now_, out_);
  }
}

}  // namespace troupe::node
