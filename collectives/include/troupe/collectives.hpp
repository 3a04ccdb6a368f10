/// Process groups in an ordinary C++ program: no cluster, no CAF, no ZeroMQ, no LibTorch.
///
///   auto group = troupe::collectives::init_process_group("native", "env://");
///   auto values = group->allocate<float>(1 << 20);
///   group->all_reduce(values)->wait();
///
/// Link troupe::collectives (docs/use-it.md). The backends gloo and mpi are libraries of their own: link
/// troupe::collectives_gloo or troupe::collectives_mpi and call use_gloo() or use_mpi() in main.
/// docs/collectives/forming-groups.md says how ranks meet and what happens when one dies.
#pragma once

#include "collectives/gloo/use_gloo.hpp"
#include "collectives/mpi/use_mpi.hpp"
#include "collectives/process_group.hpp"
#include "collectives/rendezvous/group_member.hpp"
#include "collectives/rendezvous/init.hpp"
#include "runtime/core/error.hpp"
