/// A process group whose operations a flight recorder remembers.
#pragma once

#include <memory>

#include "collectives/flight/flight_recorder.hpp"
#include "collectives/process_group.hpp"

namespace troupe::collectives {

/// `group` with a flight recorder around it: any backend, and every call goes straight through. The first
/// operation that fails, or an abort on this rank, leaves a dump (see FlightOptions); the errors themselves
/// are the backend's, unchanged. A launch that is refused (BadConfig, BadInput, a limit) is remembered and
/// leaves none. REQUIRES: group is not null.
std::shared_ptr<ProcessGroup> recorded(std::shared_ptr<ProcessGroup> group,
                                       flight::FlightOptions options = {});

/// The recorder of a group that `recorded` made; null for any other.
std::shared_ptr<flight::FlightRecorder> flight_recorder_of(const ProcessGroup& group);

}  // namespace troupe::collectives
