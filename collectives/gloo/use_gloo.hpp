/// The backend gloo for init_process_group.
#pragma once

namespace troupe::collectives {

/// Lets init_process_group make groups of the backend "gloo" from now on. Call it once, in main; a build
/// without Gloo refuses when a group is made. Gloo authenticates nobody: between machines the network has to
/// be trusted.
void use_gloo();

}  // namespace troupe::collectives
