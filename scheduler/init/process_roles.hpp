/// The processes that troupe starts from the user's own executable: head, node, worker, or a
/// process of launch::spawn.
#pragma once

namespace troupe {

/// When this process was started to be one of them, becomes it and never returns: the process
/// exits when its role ends. Returns in the user's program.
void become_role_if_asked();

}  // namespace troupe
